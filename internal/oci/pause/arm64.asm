// The pause program for arm64 Linux. codeARM64 in code.go holds the bytes that
// this assembles to, which TestSource checks. See amd64.asm for what it does and
// why.

        .text
_start:
        ldr     x0, [sp]                // argc
        cmp     x0, #1
        b.eq    run
        cmp     x0, #3
        b.ne    out

        mov     x8, #63                 // read
        mov     x0, xzr
        sub     x1, sp, #16
        mov     x2, #1
        svc     #0
        cmp     x0, #1
        b.ne    out

        mov     x8, #57                 // close
        mov     x0, xzr
        svc     #0

        mov     x8, #167                // prctl
        mov     x0, #38                 // PR_SET_NO_NEW_PRIVS
        mov     x1, #1
        mov     x2, xzr
        mov     x3, xzr
        mov     x4, xzr
        svc     #0
        cbnz    x0, out

        mov     x2, #9                  // struct sock_fprog
        adr     x3, filter
        stp     x2, x3, [sp, #-16]!
        mov     x2, sp
        mov     x0, #22                 // PR_SET_SECCOMP
        mov     x1, #2                  // SECCOMP_MODE_FILTER
        svc     #0                      // the kernel preserves x8
        cbnz    x0, out

run:
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
filter:                                 // see filter in code.go
        .short  0x20, 0
        .long   4
        .short  0x15, 0x0500
        .long   0xc00000b7
        .short  0x20, 0
        .long   0
        .short  0x15, 0x0004
        .long   134
        .short  0x15, 0x0003
        .long   135
        .short  0x15, 0x0002
        .long   137
        .short  0x15, 0x0001
        .long   94
        .short  0x06, 0
        .long   0x80000000
        .short  0x06, 0
        .long   0x7fff0000
