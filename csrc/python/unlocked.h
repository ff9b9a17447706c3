// Python's lock, given back around work that needs no Python.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace flashcute::python {

class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      // The interpreter is going down and, before Python 3.14, ends this thread by unwinding it, which would abort the
      // process here. As 3.14 does: the thread stays where it is until the process is gone.
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

}  // namespace flashcute::python
