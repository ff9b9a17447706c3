/* Faults on demand, so that tests can reach every status without a broken machine. Not for production: process-wide.
 * Set before the call that should fail; FLASHCUTE_FAULT_NONE takes it back. */
#ifndef FLASHCUTE_TESTING_H
#define FLASHCUTE_TESTING_H

#include "flashcute/flashcute.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum flashcuteFault {
  FLASHCUTE_FAULT_NONE = 0,
  FLASHCUTE_FAULT_OUT_OF_MEMORY = 1,  /* the next internal allocation of a call throws: INTERNAL_ERROR */
  FLASHCUTE_FAULT_LAUNCH_FAILURE = 2, /* work handed to a device fails (runs, merges, memory calls): INTERNAL_ERROR */
  FLASHCUTE_FAULT_OLD_GPU = 3,        /* a GPU of compute capability 7.5 stands at device id 0 */
  FLASHCUTE_FAULT_NO_GPU = 4,         /* no GPU is found */
  FLASHCUTE_FAULT_UNKNOWN_DEVICE_TYPE = 5, /* handles and descriptors seem to be of a device type this build lacks */
  FLASHCUTE_FAULT_PRETENDED_GPU = 6 /* a GPU of capability 8.0 seems to stand at device id 0: plans can be made for it,
                                       runs need a real one */
} flashcuteFault_t;

/* SUCCESS, BAD_PARAM */
FLASHCUTE_API flashcuteStatus_t flashcuteInjectFault(flashcuteFault_t fault);

#ifdef __cplusplus
}
#endif
#endif
