# THE list of compiled kernels: family head_dim dtype mask_class spills [small or short].
# The order is that of the registry: of kernels that serve a problem equally closely, the first that the device can run is
# taken, unless it is favoured. small: with the tile for devices of less shared memory. short: for short sequences.
# spill_free: csrc/cuda/check_spills.py fails when ptxas reports spills; may_spill: it prints them. head_dim 128 holds 192
# accumulators a thread: a few of the main loop's invariants go to local memory, more where it also sums for the LSE. What
# sm90 spills at head_dim 256 is the producer's, a warp that mostly waits: it gives its registers to the math.
set(FLASHCUTE_VARIANTS
    "sm90 64 float16 full spill_free"
    "sm90 64 float16 banded spill_free"
    "sm90 64 bfloat16 full spill_free"
    "sm90 64 bfloat16 banded spill_free"
    "sm90 128 float16 full spill_free"
    "sm90 128 float16 banded spill_free"
    "sm90 128 bfloat16 full spill_free"
    "sm90 128 bfloat16 banded spill_free"
    "sm90 256 float16 full may_spill"
    "sm90 256 float16 banded may_spill"
    "sm90 256 bfloat16 full may_spill"
    "sm90 256 bfloat16 banded may_spill"
    "sm80 32 float16 full spill_free"
    "sm80 32 float16 banded spill_free"
    "sm80 32 float16 any spill_free"
    "sm80 32 bfloat16 full spill_free"
    "sm80 32 bfloat16 banded spill_free"
    "sm80 32 bfloat16 any spill_free"
    "sm80 64 float16 full spill_free"
    "sm80 64 float16 banded spill_free"
    "sm80 64 float16 any spill_free"
    "sm80 64 bfloat16 full spill_free"
    "sm80 64 bfloat16 banded spill_free"
    "sm80 64 bfloat16 any spill_free"
    "sm80 96 float16 full may_spill"
    "sm80 96 float16 banded may_spill"
    "sm80 96 float16 any may_spill"
    "sm80 96 bfloat16 full may_spill"
    "sm80 96 bfloat16 banded may_spill"
    "sm80 96 bfloat16 any may_spill"
    "sm80 128 float16 full may_spill"
    "sm80 128 float16 banded may_spill"
    "sm80 128 float16 any may_spill"
    "sm80 128 bfloat16 full may_spill"
    "sm80 128 bfloat16 banded may_spill"
    "sm80 128 bfloat16 any may_spill"
    "sm80 192 float16 full spill_free"
    "sm80 192 float16 banded spill_free"
    "sm80 192 float16 any spill_free"
    "sm80 192 bfloat16 full spill_free"
    "sm80 192 bfloat16 banded spill_free"
    "sm80 192 bfloat16 any spill_free"
    "sm80 256 float16 full spill_free"
    "sm80 256 float16 banded spill_free"
    "sm80 256 float16 any may_spill"
    "sm80 256 bfloat16 full spill_free"
    "sm80 256 bfloat16 banded spill_free"
    "sm80 256 bfloat16 any may_spill"
    "sm80 256 float16 full may_spill small"
    "sm80 256 float16 banded may_spill small"
    "sm80 256 float16 any may_spill small"
    "sm80 256 bfloat16 full may_spill small"
    "sm80 256 bfloat16 banded may_spill small"
    "sm80 256 bfloat16 any may_spill small"
    "sm80 256 float16 full spill_free short"
    "sm80 256 bfloat16 full spill_free short")

# sm80 runs on every later GPU too; SASS for the two it is tuned on, PTX for the rest.
set(FLASHCUTE_GENCODE_sm80 "arch=compute_80,code=[sm_80,sm_90,compute_80]")
# WGMMA and register reallocation are of 9.0 alone. The definition: CuTe's full list of WGMMA shapes.
set(FLASHCUTE_GENCODE_sm90 "arch=compute_90a,code=sm_90a")
set(FLASHCUTE_OPTIONS_sm90 -DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED)
