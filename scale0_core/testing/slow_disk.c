/* A disk that is slow, or full, for one folder: preloaded into a process by slowdisk.py.
 *
 * SCALE0_SLOW_DISK names the folder and SCALE0_SLOW_DISK_CONTROL a file of three numbers, which is read at each
 * operation, so that a test may change them while the process runs:
 *     write_us sync_us capacity
 * Microseconds that each write and each sync of a file below the folder takes longer; and how many bytes all files
 * below it may have together, -1 for any number. A write beyond that is cut short, then fails with ENOSPC, as on a
 * real disk; removing files makes room.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static long write_us, sync_us;
static long long capacity = -1;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static long long counted;

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })

static int read_control(void)
{
    const char *path = getenv("SCALE0_SLOW_DISK_CONTROL");
    char text[128];
    if (!path) return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0) return 0;
    text[size] = 0;
    return sscanf(text, "%ld %ld %lld", &write_us, &sync_us, &capacity) == 3;
}

/* whether the descriptor is of a regular file below the folder */
static int is_ours(int fd)
{
    const char *folder = getenv("SCALE0_SLOW_DISK");
    char link[64], path[PATH_MAX];
    if (!folder) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return !strncmp(path, folder, strlen(folder));
}

static int count_file(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)path; (void)walk;
    if (kind == FTW_F && S_ISREG(status->st_mode)) counted += status->st_size;
    return 0;
}

/* how many bytes of a write that ends at `end` fit; removed files that are still open do not count */
static size_t fitting(int fd, off_t offset, size_t size)
{
    struct stat status;
    if (capacity < 0 || fstat(fd, &status)) return size;
    if (offset < 0) offset = (fcntl(fd, F_GETFL) & O_APPEND) ? status.st_size : lseek(fd, 0, SEEK_CUR);
    long long growth = (long long)offset + (long long)size - status.st_size;
    if (growth <= 0) return size;
    pthread_mutex_lock(&counting);
    counted = 0;
    nftw(getenv("SCALE0_SLOW_DISK"), count_file, 16, FTW_PHYS);
    long long left = capacity - counted;
    pthread_mutex_unlock(&counting);
    if (growth <= left) return size;
    long long over = growth - (left > 0 ? left : 0);
    return over >= (long long)size ? 0 : size - (size_t)over;
}

static ssize_t admit(int fd, off_t offset, size_t size)
{
    if (!is_ours(fd) || !read_control()) return (ssize_t)size;
    if (write_us > 0) usleep((useconds_t)write_us);
    size_t room = fitting(fd, offset, size);
    if (size && !room) { errno = ENOSPC; return -1; }
    return (ssize_t)room;
}

ssize_t write(int fd, const void *data, size_t size)
{
    ssize_t room = admit(fd, -1, size);
    return room < 0 ? -1 : REAL(write)(fd, data, (size_t)room);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    ssize_t room = admit(fd, offset, size);
    return room < 0 ? -1 : REAL(pwrite)(fd, data, (size_t)room, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    ssize_t room = admit(fd, offset, size);
    return room < 0 ? -1 : REAL(pwrite64)(fd, data, (size_t)room, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    if (!is_ours(fd)) return REAL(writev)(fd, parts, count);
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t sent = parts[i].iov_len ? write(fd, parts[i].iov_base, parts[i].iov_len) : 0;
        if (sent < 0) return total ? total : -1;
        total += sent;
        if ((size_t)sent < parts[i].iov_len) break;
    }
    return total;
}

static int allocate(int fd, off64_t offset, off64_t size)
{
    if (!is_ours(fd) || !read_control()) return 0;
    return fitting(fd, offset, (size_t)size) == (size_t)size ? 0 : ENOSPC;
}

int posix_fallocate(int fd, off_t offset, off_t size)
{
    int error = allocate(fd, offset, size);
    return error ? error : REAL(posix_fallocate)(fd, offset, size);
}

int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
    int error = allocate(fd, offset, size);
    return error ? error : REAL(posix_fallocate64)(fd, offset, size);
}

int fallocate(int fd, int mode, off_t offset, off_t size)
{
    int error = mode ? 0 : allocate(fd, offset, size);
    if (error) { errno = error; return -1; }
    return REAL(fallocate)(fd, mode, offset, size);
}

static void wait_for_sync(int fd)
{
    if (is_ours(fd) && read_control() && sync_us > 0) usleep((useconds_t)sync_us);
}

int fsync(int fd)
{
    wait_for_sync(fd);
    return REAL(fsync)(fd);
}

int fdatasync(int fd)
{
    wait_for_sync(fd);
    return REAL(fdatasync)(fd);
}
