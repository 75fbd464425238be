// memcpy with vector registers, 64 bytes at a time. compiler_builtins' own (which is weak, and
// gives way to this) moves single bytes or shifted words where source and destination
// are aligned differently; normal memory here may be accessed unaligned.
.section .text.memcpy, "ax"
.global memcpy
.type memcpy, %function
memcpy:
    mov     x3, x0
    subs    x2, x2, #64
    b.lo    2f
1:  ldp     q0, q1, [x1]
    ldp     q2, q3, [x1, #32]
    add     x1, x1, #64
    stp     q0, q1, [x3]
    stp     q2, q3, [x3, #32]
    add     x3, x3, #64
    subs    x2, x2, #64
    b.hs    1b
    // The lowest six bits of x2 are what is left.
2:  tbz     x2, #5, 3f
    ldp     q0, q1, [x1], #32
    stp     q0, q1, [x3], #32
3:  tbz     x2, #4, 4f
    ldr     q0, [x1], #16
    str     q0, [x3], #16
4:  tbz     x2, #3, 5f
    ldr     x4, [x1], #8
    str     x4, [x3], #8
5:  tbz     x2, #2, 6f
    ldr     w4, [x1], #4
    str     w4, [x3], #4
6:  tbz     x2, #1, 7f
    ldrh    w4, [x1], #2
    strh    w4, [x3], #2
7:  tbz     x2, #0, 8f
    ldrb    w4, [x1]
    strb    w4, [x3]
8:  ret
.size memcpy, . - memcpy
