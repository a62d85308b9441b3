/* The first process of a Pod's sandbox: it keeps the namespaces alive, reaps what the Pod leaves behind, and ends when
 * it is told to. It needs no library, so that it is built with any compiler: the three calls that it makes are here.
 *
 * All of its signals are blocked and taken one after the other, so that none of them needs a handler: a process that is
 * the first of its namespace gets no signal that it neither handles nor waits for. */

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

typedef unsigned long word;

#if defined(__x86_64__)

static word call(word number, word a, word b, word c, word d)
{
	word result;
	register word fourth __asm__("r10") = d;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
			 : "rcx", "r11", "memory");
	return result;
}

#elif defined(__aarch64__)

static word call(word number, word a, word b, word c, word d)
{
	register word x8 __asm__("x8") = number;
	register word x0 __asm__("x0") = a;
	register word x1 __asm__("x1") = b;
	register word x2 __asm__("x2") = c;
	register word x3 __asm__("x3") = d;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}

#else
#error "pause is for x86-64 and arm64"
#endif

static word bit(int number)
{
	return 1UL << (number - 1);
}

static long wait_for(word signals)
{
	return (long)call(SYS_rt_sigtimedwait, (word)&signals, 0, 0, sizeof(signals));
}

static long reap(void)
{
	return (long)call(SYS_wait4, (word)-1, 0, WNOHANG, 0);
}

void _start(void)
{
	word signals = bit(SIGCHLD) | bit(SIGINT) | bit(SIGTERM);
	long taken;

	call(SYS_rt_sigprocmask, SIG_BLOCK, (word)&signals, 0, sizeof(signals));
	do {
		taken = wait_for(signals);
		while (reap() > 0)
			;
	} while (taken != SIGINT && taken != SIGTERM);
	for (;;)
		call(SYS_exit_group, 0, 0, 0, 0);
}
