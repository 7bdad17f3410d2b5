# The pause program for amd64 Linux. codeAMD64 in code.go holds the bytes that
# this assembles to, which TestSource checks.
#
#   if argc == 1 goto run
#   if argc != 3 goto out                          with one argument it exits at once
#   if read(0, stack, 1) != 1 goto out             the parent is gone
#   close(0)
#   if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 goto out
#   if prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, {filter}) != 0 goto out
#   run: rt_sigaction(SIGCHLD, {SIG_IGN}, NULL, 8)      the kernel reaps orphans
#   rt_sigprocmask(SIG_BLOCK, {INT, TERM}, NULL, 8)
#   do r = rt_sigtimedwait({INT, TERM}, NULL, NULL, 8) while r < 0
#   out: exit_group(0)
#
# PID 1 of a namespace ignores signals whose action is the default, but a blocked
# signal stays pending even there.

        .intel_syntax noprefix
        .text
_start:
        cmp     dword ptr [rsp], 1      # argc
        je      run
        cmp     dword ptr [rsp], 3
        jne     out

        push    0
        xor     eax, eax                # read
        xor     edi, edi
        mov     rsi, rsp
        mov     edx, 1
        syscall
        cmp     eax, 1
        jne     out

        mov     eax, 3                  # close
        syscall

        mov     eax, 157                # prctl
        mov     edi, 38                 # PR_SET_NO_NEW_PRIVS
        mov     esi, 1
        xor     edx, edx
        xor     r10d, r10d
        xor     r8d, r8d
        syscall
        test    eax, eax
        jnz     out

        lea     rax, filter[rip]        # struct sock_fprog
        push    rax
        push    9
        mov     rdx, rsp
        mov     eax, 157                # prctl
        mov     edi, 22                 # PR_SET_SECCOMP
        mov     esi, 2                  # SECCOMP_MODE_FILTER
        syscall
        test    eax, eax
        jnz     out

run:
        mov     eax, 13                 # rt_sigaction
        mov     edi, 17                 # SIGCHLD
        lea     rsi, action[rip]
        xor     edx, edx
        mov     r10d, 8                 # size of a signal set
        syscall

        mov     eax, 14                 # rt_sigprocmask
        xor     edi, edi                # SIG_BLOCK
        lea     rsi, set[rip]
        xor     edx, edx
        syscall                         # the kernel preserves r10

wait:
        mov     eax, 128                # rt_sigtimedwait
        lea     rdi, set[rip]
        xor     esi, esi
        xor     edx, edx
        syscall
        test    eax, eax
        js      wait                    # EINTR: stopped and continued, or traced

out:
        mov     eax, 231                # exit_group
        xor     edi, edi
        syscall

        .balign 8, 0xcc
action:
        .quad   1                       # SIG_IGN
        .quad   0                       # flags
        .quad   0                       # restorer
        .quad   0                       # mask
set:
        .quad   (1 << (2-1)) | (1 << (15-1))    # SIGINT, SIGTERM
filter:                                 # see filter in code.go
        .short  0x20, 0
        .long   4
        .short  0x15, 0x0500
        .long   0xc000003e
        .short  0x20, 0
        .long   0
        .short  0x15, 0x0004
        .long   13
        .short  0x15, 0x0003
        .long   14
        .short  0x15, 0x0002
        .long   128
        .short  0x15, 0x0001
        .long   231
        .short  0x06, 0
        .long   0x80000000
        .short  0x06, 0
        .long   0x7fff0000
