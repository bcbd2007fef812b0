"""Counting the tensor instructions of an inner loop, in code as nvdisasm and nvcc print it."""

from tools.inner_loop import Loop, inner_loop

MACHINE = """
.L_x_0:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDSM.16.M88.4 R4, [R2] ;
.L_x_2:
        /*0020*/                   IADD3 R9, R9, 0x1, RZ ;
        /*0030*/               @P1 BRA `(.L_x_2) ;
        /*0040*/                   HMMA.1688.F32.TF32 R12, R4.reuse, R8, R12 ;
        /*0050*/              @!P0 HMMA.16816.F32 R12, R4, R8, R12 ;
        /*0060*/              @!P0 BRA `(.L_x_1) ;
        /*0070*/               @P2 BRA `(.L_x_0) ;
        /*0080*/                   EXIT ;
"""
PTX = """
$L__BB0_2:
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1,%r2,%r3,%r4}, [%r5];
    mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r10,%r11}, {%r1}, {%r6}, {%r10,%r11};
    setp.lt.s32 %p1, %r8, %r9;
    @%p1 bra $L__BB0_2;
    ret;
"""


def test_the_shortest_loop_with_all_tensor_instructions_counts():
    assert inner_loop(MACHINE, is_ptx=False) == Loop(instructions=6, tensor=2)
    assert str(inner_loop(MACHINE, is_ptx=False)) == "2 of 6, 33%"
    assert inner_loop(PTX, is_ptx=True) == Loop(instructions=4, tensor=1)


def test_code_without_them_has_no_such_loop():
    assert inner_loop(MACHINE.replace("HMMA", "FFMA"), is_ptx=False) is None
    assert inner_loop(PTX, is_ptx=False) is None
