# The stdio holder for amd64 Linux. codeAMD64 in code.go holds the bytes that
# this assembles to, which TestSource checks.
#
#   fd = open(argv[1], O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC, 0600)
#   if fd < 0 goto fail
#   pid = fork()
#   if pid < 0 goto fail
#   if pid == 0 for (;;) ppoll(NULL, 0, NULL, NULL, 0)
#   write(fd, pid in decimal) and exit_group(0)
#   fail: exit_group(1)

        .intel_syntax noprefix
        .text
_start:
        mov     eax, 2                  # open
        mov     rdi, [rsp+16]           # argv[1]; NULL is an error
        mov     esi, 0x80241            # O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC
        mov     edx, 0x180              # 0600
        syscall
        test    eax, eax
        js      fail
        mov     ebx, eax

        mov     eax, 57                 # fork
        syscall
        test    eax, eax
        js      fail
        jz      hold

        mov     rsi, rsp                # writes digits below the stack, the last one first
        mov     ecx, 10
digit:
        xor     edx, edx
        div     ecx
        add     edx, 48                 # '0'
        dec     rsi
        mov     [rsi], dl
        test    eax, eax
        jnz     digit

        mov     rdx, rsp
        sub     rdx, rsi
        mov     edi, ebx
        mov     eax, 1                  # write
        syscall
        cmp     eax, edx
        jne     fail
        xor     edi, edi
        jmp     out
fail:
        mov     edi, 1
out:
        mov     eax, 231                # exit_group
        syscall

hold:
        mov     eax, 271                # ppoll
        xor     edi, edi
        xor     esi, esi
        xor     edx, edx
        xor     r10d, r10d
        xor     r8d, r8d
        syscall
        jmp     hold
