// From reset to main: processor, stack, zeroed memory, page tables, vectors.
.section .text.start, "ax"
.global start
start:
    // At EL2 if the board has virtualization: down to EL1.
    mrs     x0, CurrentEL
    cmp     x0, #(2 << 2)
    b.ne    1f
    mov     x0, #(1 << 31)          // HCR_EL2.RW: EL1 is AArch64
    msr     hcr_el2, x0
    mov     x0, #3                  // CNTHCTL_EL2: EL1 has the counter and the timer
    msr     cnthctl_el2, x0
    msr     cntvoff_el2, xzr
    mov     x0, #0x33ff             // CPTR_EL2: no trap of vector instructions
    msr     cptr_el2, x0
    mov     x0, #0x3c5              // SPSR_EL2: EL1h, everything masked
    msr     spsr_el2, x0
    adr     x0, 1f
    msr     elr_el2, x0
    eret

    // Interrupts stay masked: wfi ends with them all the same.
1:  msr     daifset, #0xf
    mov     x0, #(3 << 20)          // CPACR_EL1.FPEN: vector registers are used
    msr     cpacr_el1, x0
    adrp    x0, vectors
    add     x0, x0, :lo12:vectors
    msr     vbar_el1, x0

    // Memory is normal and cached, devices are not; what is not listed is a fault.
    adrp    x0, level1
    msr     ttbr0_el1, x0
    mov     x0, #0xff04             // MAIR_EL1: 0 is device nGnRE, 1 is write-back
    msr     mair_el1, x0
    ldr     x0, =0x200803519        // TCR_EL1: 39 bits, 4 KiB, write-back, no TTBR1, 40 physical bits
    msr     tcr_el1, x0
    tlbi    vmalle1
    dsb     sy
    isb
    mrs     x0, sctlr_el1
    mov     x1, #0x1005             // M, C, I
    orr     x0, x0, x1
    bic     x0, x0, #2              // A: unaligned access is fine
    msr     sctlr_el1, x0
    isb

    // Faults have a stack of their own: SP_EL1. Everything else is on SP_EL0.
    adrp    x0, fault_stack_start
    add     x0, x0, :lo12:fault_stack_start
    msr     spsel, #1
    mov     sp, x0
    msr     spsel, #0
    adrp    x0, stack_start
    add     x0, x0, :lo12:stack_start
    mov     sp, x0

    // Paint the stack, to see later how much of it was ever used.
    adrp    x1, stack_end
    add     x1, x1, :lo12:stack_end
    ldr     x2, =0xcccccccccccccccc
2:  stp     x2, x2, [x1], #16
    cmp     x1, x0
    b.lo    2b

    adrp    x0, bss_start
    add     x0, x0, :lo12:bss_start
    adrp    x1, bss_end
    add     x1, x1, :lo12:bss_end
3:  cmp     x0, x1
    b.hs    4f
    stp     xzr, xzr, [x0], #16
    b       3b

4:  bl      main
5:  wfe
    b       5b

// Nothing but faults comes here: interrupts are masked.
.balign 2048
vectors:
.rept 16
    .balign 128
    mrs     x0, esr_el1
    mrs     x1, elr_el1
    mrs     x2, far_el1
    msr     spsel, #1
    bl      fault
.endr

.section .data.tables, "aw"
.balign 4096
level1:
    .quad   0x0060000000000401      // 0 to 1 GiB: devices, not executable
    .quad   level2 + 3              // 1 to 2 GiB
    .fill   510, 8, 0
.balign 4096
level2:
    .quad   0                       // the device tree, below the stack
    .set    at, 0x40200000
.rept 32                            // 64 MiB in blocks of 2 MiB: normal, inner shareable
    .quad   at + 0x705
    .set    at, at + 0x200000
.endr
    .fill   479, 8, 0
