// The stdio holder for arm64 Linux. codeARM64 in code.go holds the bytes that
// this assembles to, which TestSource checks. See amd64.asm for what it does;
// fork() is clone(SIGCHLD) here.

        .text
_start:
        mov     x8, #56                 // openat
        mov     x0, #-100               // AT_FDCWD
        ldr     x1, [sp, #16]           // argv[1]; NULL is an error
        mov     x2, #0x241              // O_WRONLY|O_CREAT|O_TRUNC
        movk    x2, #8, lsl #16         // O_CLOEXEC
        mov     x3, #0x180              // 0600
        svc     #0
        tbnz    w0, #31, fail
        mov     x19, x0

        mov     x8, #220                // clone
        mov     x0, #17                 // SIGCHLD
        mov     x1, xzr
        mov     x2, xzr
        mov     x3, xzr
        mov     x4, xzr
        svc     #0
        tbnz    w0, #31, fail
        cbz     w0, hold

        mov     x1, sp                  // writes digits below the stack, the last one first
        mov     x2, #10
digit:
        udiv    x3, x0, x2
        msub    x4, x3, x2, x0
        add     w4, w4, #48             // '0'
        strb    w4, [x1, #-1]!
        mov     x0, x3
        cbnz    x0, digit

        mov     x2, sp
        sub     x2, x2, x1
        mov     x0, x19
        mov     x8, #64                 // write
        svc     #0
        cmp     x0, x2
        b.ne    fail
        mov     x0, xzr
        b       out
fail:
        mov     x0, #1
out:
        mov     x8, #94                 // exit_group
        svc     #0

hold:
        mov     x8, #73                 // ppoll
        mov     x0, xzr
        mov     x1, xzr
        mov     x2, xzr
        mov     x3, xzr
        mov     x4, xzr
        svc     #0
        b       hold
