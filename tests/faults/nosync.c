/* Preloaded into a server by the power cut rig: every sync returns at once and nothing is
   synced. A rig that does not detect this server proves nothing. */
#include <sys/types.h>

int fsync(int fd) { (void)fd; return 0; }
int fdatasync(int fd) { (void)fd; return 0; }
int msync(void *address, size_t length, int flags) { (void)address; (void)length; (void)flags; return 0; }
int sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags) {
    (void)fd; (void)offset; (void)bytes; (void)flags;
    return 0;
}
