# The pause program for amd64 Linux. codeAMD64 in code.go holds the bytes that
# this assembles to, which TestSource checks.
#
#   if argc > 1 goto out                           with an argument it exits at once
#   rt_sigaction(SIGCHLD, {SIG_IGN}, NULL, 8)      the kernel reaps orphans
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
        ja      out

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
