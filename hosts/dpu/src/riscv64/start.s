// From reset to main: processor, stack, zeroed memory, a page that is a fault, vector.
.section .text.start, "ax"
.global start
start:
    csrr    t0, mhartid
    bnez    t0, 4f
    li      t0, 0x6000              // mstatus.FS: floating point is used
    csrs    mstatus, t0
    li      t0, 0x880               // mie: MEIE and MTIE. mstatus.MIE stays 0: wfi ends all the same
    csrw    mie, t0
    la      t0, vector
    csrw    mtvec, t0
    // Faults have a stack of their own.
    la      t0, fault_stack_start
    csrw    mscratch, t0
    // Whoever goes beyond the end of the stack meets a page that is locked, for this mode too.
    la      t0, stack_guard
    srli    t0, t0, 2
    ori     t0, t0, 0x1ff           // NAPOT, 4 KiB
    csrw    pmpaddr0, t0
    li      t0, 0x98                // pmpcfg0: L, NAPOT, no access
    csrw    pmpcfg0, t0
    la      sp, stack_start

    // Paint the stack, to see later how much of it was ever used.
    la      t0, stack_end
    li      t1, 0xcccccccccccccccc
1:  sd      t1, 0(t0)
    addi    t0, t0, 8
    bltu    t0, sp, 1b

    la      t0, bss_start
    la      t1, bss_end
2:  bgeu    t0, t1, 3f
    sd      zero, 0(t0)
    addi    t0, t0, 8
    j       2b

3:  call    main
4:  wfi
    j       4b

// Nothing but faults comes here: interrupts are masked.
.balign 4
vector:
    csrrw   sp, mscratch, sp
    csrr    a0, mcause
    csrr    a1, mepc
    csrr    a2, mtval
    call    fault
