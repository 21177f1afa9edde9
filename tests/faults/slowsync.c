/* Preloaded into a Redis: a sync of its background thread takes so long that a kill interrupts it. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

int fdatasync(int fd) {
    if (syscall(SYS_gettid) != getpid()) usleep(1200 * 1000);
    return syscall(SYS_fdatasync, fd);
}
