// The pause program for arm64 Linux. codeARM64 in code.go holds the bytes that
// this assembles to, which TestSource checks. See amd64.asm for what it does and
// why.

        .text
_start:
        ldr     x0, [sp]                // argc
        cmp     x0, #1
        b.hi    out

        mov     x8, #134                // rt_sigaction
        mov     x0, #17                 // SIGCHLD
        adr     x1, action
        mov     x2, xzr
        mov     x3, #8                  // size of a signal set
        svc     #0

        mov     x8, #135                // rt_sigprocmask
        mov     x0, xzr                 // SIG_BLOCK
        adr     x1, set
        mov     x2, xzr
        svc     #0                      // the kernel preserves x1 to x7

wait:
        mov     x8, #137                // rt_sigtimedwait
        adr     x0, set
        mov     x1, xzr
        mov     x2, xzr
        svc     #0
        tbnz    w0, #31, wait           // EINTR: stopped and continued, or traced

out:
        mov     x8, #94                 // exit_group
        mov     x0, xzr
        svc     #0

        .balign 8, 0
action:
        .quad   1                       // SIG_IGN
        .quad   0                       // flags
        .quad   0                       // restorer
        .quad   0                       // mask
set:
        .quad   (1 << (2-1)) | (1 << (15-1))    // SIGINT, SIGTERM
