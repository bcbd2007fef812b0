"""The PTX interpreter: runs on the CPU what nvcc emitted for a GPU, checks every access, counts everything.

C++ sources, built on demand by `build.build`; the interface is `sim.h`. Reading order: ptx.h (what
a program is), parser.cpp and decode.cpp (text to program), machine.h and executor.cpp (blocks and warps),
memory.cpp and race.cpp (what is checked), bind.cpp (opcode to family), then a file for each family.
"""
