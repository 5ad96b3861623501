/* The few parts of libzmq that the benches use, looked up at run time.
 *
 * pyzmq ships libzmq without its headers, so the prototypes stand here. The library is opened by path: the
 * benches must run on the very libzmq that pyzmq uses, or they would compare two builds of libzmq.
 */
#ifndef SCALE0_BENCH_ZMQ_DL_H
#define SCALE0_BENCH_ZMQ_DL_H

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* libzmq promises both layouts in its ABI since 4.0 (POSIX: a pollitem's fd is an int) */
typedef union { unsigned char bytes[64]; void *alignment; } zmq_msg_t;
typedef struct { void *socket; int fd; short events; short revents; } zmq_pollitem_t;
typedef void zmq_free_fn(void *data, void *hint);

enum { ZMQ_DEALER = 5, ZMQ_ROUTER = 6 };
enum { ZMQ_FD = 14, ZMQ_LINGER = 17, ZMQ_RECONNECT_IVL = 18, ZMQ_SNDHWM = 23, ZMQ_RCVHWM = 24, ZMQ_RCVTIMEO = 27,
       ZMQ_LAST_ENDPOINT = 32 };
enum { ZMQ_MAX_SOCKETS = 2 };
enum { ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2, ZMQ_POLLIN = 1 };

static struct {
    void *(*ctx_new)(void);
    int (*ctx_set)(void *, int, int);
    int (*ctx_term)(void *);
    void *(*socket)(void *, int);
    int (*setsockopt)(void *, int, const void *, size_t);
    int (*getsockopt)(void *, int, void *, size_t *);
    int (*bind)(void *, const char *);
    int (*connect)(void *, const char *);
    int (*close)(void *);
    int (*poll)(zmq_pollitem_t *, int, long);
    int (*msg_init)(zmq_msg_t *);
    int (*msg_init_size)(zmq_msg_t *, size_t);
    int (*msg_init_data)(zmq_msg_t *, void *, size_t, zmq_free_fn *, void *);
    int (*msg_recv)(zmq_msg_t *, void *, int);
    int (*msg_send)(zmq_msg_t *, void *, int);
    int (*msg_move)(zmq_msg_t *, zmq_msg_t *);
    int (*msg_close)(zmq_msg_t *);
    int (*msg_more)(const zmq_msg_t *);
    void *(*msg_data)(zmq_msg_t *);
    size_t (*msg_size)(const zmq_msg_t *);
    const char *(*strerror)(int);
} zmq;

/* End with one sentence on stderr. */
static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

/* End with what was tried and what libzmq said about it. */
static void fail_zmq(const char *what) { fail("%s: %s", what, zmq.strerror(errno)); }

static void *find_symbol(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) fail("libzmq has no %s", name);
    return symbol;
}

static void load_zmq(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail("cannot open libzmq: %s", dlerror());
    /* through a void ** as POSIX shows for dlsym: ISO C has no cast from object to function pointer */
#define FIND(name) *(void **) &zmq.name = find_symbol(library, "zmq_" #name)
    FIND(ctx_new); FIND(ctx_set); FIND(ctx_term); FIND(socket); FIND(setsockopt);
    FIND(getsockopt); FIND(bind); FIND(connect); FIND(close); FIND(poll); FIND(msg_init); FIND(msg_init_size); FIND(msg_init_data); FIND(msg_recv); FIND(msg_send);
    FIND(msg_move); FIND(msg_close); FIND(msg_more); FIND(msg_data); FIND(msg_size); FIND(strerror);
#undef FIND
}

/* Set an option that takes an int. */
__attribute__((unused)) static void set_option(void *socket, int option, int value) {
    if (zmq.setsockopt(socket, option, &value, sizeof value)) fail_zmq("setsockopt");
}

__attribute__((unused)) static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

/* Allow as many connections as the system lets this user have; when refused, opening the sockets says so. */
__attribute__((unused)) static void raise_descriptor_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Open a DEALER without high-water marks that gives up nothing and waits for nobody when closed. */
__attribute__((unused)) static void *open_dealer(void *context, const char *endpoint) {
    void *socket = zmq.socket(context, ZMQ_DEALER);
    if (!socket) fail_zmq("socket");
    set_option(socket, ZMQ_LINGER, 0);
    set_option(socket, ZMQ_SNDHWM, 0);
    set_option(socket, ZMQ_RCVHWM, 0);
    if (zmq.connect(socket, endpoint)) fail_zmq(endpoint);
    return socket;
}

#endif
