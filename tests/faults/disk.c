/* For LD_PRELOAD; see disk.py. Calls that write below $DISK_BELOW are made one after another and
   recorded in $DISK_LOG; from the $DISK_START-th on, $DISK_TIMES of them fail with $DISK_ERROR, or
   with $DISK_NAMES=1 only those that make a file or a directory: the disk has no inodes left.

   A record has five texts that end with NUL, in the order of `record`, and the bytes written. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *below;
static long calls, from, times, only_names;
static int error, log_file = -1;

/* The function of libc that one of ours stands in front of. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

__attribute__((constructor)) static void begin(void) {
    below = getenv("DISK_BELOW");
    from = number("DISK_START"), times = number("DISK_TIMES"), error = (int)number("DISK_ERROR");
    only_names = number("DISK_NAMES");
    const char *log = getenv("DISK_LOG");
    if (log) log_file = NEXT(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_below(const char *path) {
    size_t length = below ? strlen(below) : 0;
    return length && !strncmp(path, below, length) && (path[length] == '/' || !path[length]);
}

/* The path of an open file. */
static void path_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
}

/* The path of a name in a directory; a name that begins with / needs none. */
static void path_in(int directory, const char *name, char *path) {
    char parent[PATH_MAX];
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return;
    }
    if (directory == AT_FDCWD) {
        if (!getcwd(parent, sizeof parent)) parent[0] = 0;
    } else {
        path_of(directory, parent);
    }
    if (snprintf(path, PATH_MAX, "%s/%s", parent, name) >= PATH_MAX) path[0] = 0;
}

static void record(const char *call, const char *path, const char *other, long offset,
                   const void *bytes, size_t length) {
    if (log_file < 0) return;
    char head[2 * PATH_MAX + 100];
    int size = snprintf(head, sizeof head, "%s%c%s%c%s%c%ld%c%zu%c", call, 0, path, 0, other, 0,
                        offset, 0, length, 0);
    struct iovec parts[] = {{head, (size_t)size}, {(void *)bytes, length}};
    if (NEXT(writev)(log_file, parts, length ? 2 : 1) < 0) abort();
}

/* Whether this call fails. A full disk still removes files; a limit of their size stops only
   write. */
static int fails(const char *call) {
    calls++;
    if (!from || calls < from || calls >= from + times) return 0;
    if ((error == ENOSPC || error == EDQUOT) && !strcmp(call, "remove")) return 0;
    if (only_names && strcmp(call, "create") && strcmp(call, "directory")) return 0;
    if (error == EFBIG && strcmp(call, "write")) return 0;
    errno = error;
    return 1;
}

/* Make a call, and no other beside it; if its path is below and it succeeds, record it. */
#define WATCHED(type, name, path, call, ...)                  \
    if (!is_below(path)) return call;                         \
    pthread_mutex_lock(&lock);                                \
    type result = fails(name) ? (type)-1 : call;              \
    int kept = errno;                                         \
    if (result != (type)-1) record(name, path, __VA_ARGS__);  \
    pthread_mutex_unlock(&lock);                              \
    errno = kept;                                             \
    return result

/* The mode of a file that may be made is the argument after `flags`. */
#define MODE(flags)                                                        \
    va_list more;                                                          \
    va_start(more, flags);                                                 \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more)

#define OPENS(at, name)                                                                     \
    int at(int directory, const char *path, int flags, ...) {                               \
        MODE(flags);                                                                        \
        char place[PATH_MAX] = "";                                                          \
        if (flags & (O_CREAT | O_TRUNC)) path_in(directory, path, place);                   \
        const char *call = flags & O_TRUNC ? "truncate" : "create";                         \
        WATCHED(int, call, place, NEXT(at)(directory, path, flags, mode), "", 0, NULL, 0);  \
    }                                                                                       \
    int name(const char *path, int flags, ...) {                                            \
        MODE(flags);                                                                        \
        return at(AT_FDCWD, path, flags, mode);                                             \
    }
OPENS(openat, open)
OPENS(openat64, open64)

ssize_t write(int file, const void *bytes, size_t length) {
    char place[PATH_MAX];
    path_of(file, place);
    WATCHED(ssize_t, "write", place, NEXT(write)(file, bytes, length), "",
            lseek(file, 0, SEEK_CUR) - result, bytes, (size_t)result);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    /* In order, so that each part is recorded; a short write is allowed. */
    char place[PATH_MAX];
    path_of(file, place);
    if (!is_below(place)) return NEXT(writev)(file, parts, count);
    ssize_t whole = 0;
    for (int i = 0; i < count; i++) {
        ssize_t wrote = write(file, parts[i].iov_base, parts[i].iov_len);
        if (wrote < 0) return whole ? whole : wrote;
        whole += wrote;
        if ((size_t)wrote < parts[i].iov_len) break;
    }
    return whole;
}

#define WRITES_AT(name, offset_type)                                                            \
    ssize_t name(int file, const void *bytes, size_t length, offset_type offset) {              \
        char place[PATH_MAX];                                                                   \
        path_of(file, place);                                                                   \
        WATCHED(ssize_t, "write", place, NEXT(name)(file, bytes, length, offset), "",           \
                (long)offset, bytes, (size_t)result);                                           \
    }
WRITES_AT(pwrite, off_t)
WRITES_AT(pwrite64, off64_t)

#define CUTS(name, offset_type)                                                                  \
    int name(int file, offset_type length) {                                                     \
        char place[PATH_MAX];                                                                    \
        path_of(file, place);                                                                    \
        WATCHED(int, "cut", place, NEXT(name)(file, length), "", (long)length, NULL, 0);         \
    }
CUTS(ftruncate, off_t)
CUTS(ftruncate64, off64_t)

#define FLUSHES(name)                                                                 \
    int name(int file) {                                                              \
        char place[PATH_MAX];                                                         \
        path_of(file, place);                                                         \
        WATCHED(int, "flush", place, NEXT(name)(file), "", 0, NULL, 0);               \
    }
FLUSHES(fsync)
FLUSHES(fdatasync)

int renameat(int directory, const char *path, int target, const char *name) {
    char place[PATH_MAX], other[PATH_MAX];
    path_in(directory, path, place);
    path_in(target, name, other);
    WATCHED(int, "rename", place, NEXT(renameat)(directory, path, target, name), other, 0, NULL, 0);
}

int rename(const char *path, const char *name) {
    return renameat(AT_FDCWD, path, AT_FDCWD, name);
}

int unlinkat(int directory, const char *path, int flags) {
    char place[PATH_MAX];
    path_in(directory, path, place);
    WATCHED(int, "remove", place, NEXT(unlinkat)(directory, path, flags), "", 0, NULL, 0);
}

int unlink(const char *path) {
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path) {
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int mkdirat(int directory, const char *path, mode_t mode) {
    char place[PATH_MAX];
    path_in(directory, path, place);
    WATCHED(int, "directory", place, NEXT(mkdirat)(directory, path, mode), "", 0, NULL, 0);
}

int mkdir(const char *path, mode_t mode) {
    return mkdirat(AT_FDCWD, path, mode);
}

/* What cannot be recorded is not there; those who call it then write. */
#define MISSING(name, offset_type)                                                \
    ssize_t name(int file, int from_file, offset_type *offset, size_t length) {   \
        char place[PATH_MAX];                                                     \
        path_of(file, place);                                                     \
        if (!is_below(place)) return NEXT(name)(file, from_file, offset, length); \
        errno = ENOSYS;                                                           \
        return -1;                                                                \
    }
MISSING(sendfile, off_t)
MISSING(sendfile64, off64_t)
