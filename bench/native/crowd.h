/* Many peers in several processes, which connect a few at a time: shared by idle.c and heartbeats.c.
 *
 * Several processes, since a socket needs two file descriptors and a process may often have no more than 20,000.
 * Each tells the parent by a record of a fixed size how it is doing, and goes on until the parent closes a pipe.
 */
#ifndef SCALE0_BENCH_CROWD_H
#define SCALE0_BENCH_CROWD_H

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "zmq_dl.h"

enum { MAX_PROCESSES = 64 };
enum { AT_ONCE = 25 }; /* connections that one process opens at once: a listener's backlog is often 100 */

struct crowd_settings { const char *library, *endpoint; int count, processes; double time_limit; };

/* What one process of peers is told. */
struct share {
    const void *settings; /* the program's own */
    int size, number;     /* how many peers it plays; which of the processes it is */
    int results, stay;    /* where it tells its records; readable when it is to end */
    double deadline;
};

/* What the parent keeps. */
struct crowd { int processes, results, stay; double start, deadline; };

/* Take one option that all crowds have; 0 when it is another. */
static int parse_crowd_option(struct crowd_settings *settings, const char *name, const char *value) {
    if (!strcmp(name, "--library")) settings->library = value;
    else if (!strcmp(name, "--endpoint")) settings->endpoint = value;
    else if (!strcmp(name, "--count")) settings->count = atoi(value);
    else if (!strcmp(name, "--processes")) settings->processes = atoi(value);
    else if (!strcmp(name, "--time-limit")) settings->time_limit = atof(value);
    else return 0;
    return 1;
}

static void check_crowd(const struct crowd_settings *settings) {
    if (!settings->library || !settings->endpoint) fail("--library and --endpoint are needed");
    if (settings->processes < 1 || settings->processes > MAX_PROCESSES)
        fail("--processes must be 1 to %d", MAX_PROCESSES);
    if (settings->count < settings->processes) fail("--count must be at least --processes");
}

/* Load libzmq, and start the processes; each calls play, which does not return. */
static struct crowd start_crowd(const struct crowd_settings *settings, void (*play)(const struct share *),
                                const void *own) {
    int results[2], stay[2];
    struct crowd crowd = {.processes = settings->processes, .start = seconds_of(CLOCK_MONOTONIC)};
    crowd.deadline = crowd.start + settings->time_limit;
    load_zmq(settings->library);
    raise_descriptor_limit();
    if (pipe(results) || pipe(stay)) fail("no pipe");
    for (int i = 0; i < settings->processes; i++) {
        pid_t child = fork();
        if (child < 0) fail("no process");
        if (child) continue;
        close(results[0]);
        close(stay[1]); /* so that the children see the parent's end, however it comes */
        int size = settings->count / settings->processes + (i < settings->count % settings->processes);
        struct share share = {.settings = own, .size = size, .number = i, .results = results[1], .stay = stay[0],
                              .deadline = crowd.deadline};
        play(&share);
        _exit(0); /* closing thousands of sockets one by one would take longer than the kernel's way */
    }
    close(results[1]); /* so that the end of all children is seen */
    close(stay[0]);
    crowd.results = results[0];
    crowd.stay = stay[1];
    return crowd;
}

/* Make the context of one process, with room for its sockets. */
static void *crowd_context(const struct share *share) {
    void *context = zmq.ctx_new();
    if (!context || zmq.ctx_set(context, ZMQ_MAX_SOCKETS, share->size + 1)) fail_zmq("context");
    return context;
}

/* Have all peers of a process connected, a few at a time: connect is told which is the first, and how many. */
static void connect_all(const struct share *share, void (*connect)(void *state, int first, int count), void *state) {
    for (int done = 0; done < share->size; done += AT_ONCE)
        connect(state, done, share->size - done < AT_ONCE ? share->size - done : AT_ONCE);
}

/* Tell the parent a record. A pipe's writes of a few hundred bytes are whole. */
static void tell_parent(const struct share *share, const void *record, size_t size) {
    if (write(share->results, record, size) != (ssize_t) size) fail("the parent is gone");
}

/* Wait until the parent wants the end, at most so many seconds; tells whether it does. */
static int parent_ends(const struct share *share, double seconds) {
    struct pollfd item = {.fd = share->stay, .events = POLLIN};
    return poll(&item, 1, (int) (seconds * 1000)) > 0;
}

static void check_processes(void) {
    int status;
    if (waitpid(-1, &status, WNOHANG) > 0 && status != 0) fail("a process of peers failed");
}

/* Wait until every process has told a record; each is handed to add. */
static void await_records(const struct crowd *crowd, void *record, size_t size, void (*add)(const void *record),
                          double deadline) {
    for (int told = 0; told < crowd->processes;) {
        struct pollfd item = {.fd = crowd->results, .events = POLLIN};
        if (poll(&item, 1, 200) > 0) {
            if (read(crowd->results, record, size) != (ssize_t) size) fail("a process of peers failed");
            if (add) add(record);
            told++;
        }
        check_processes();
        if (seconds_of(CLOCK_MONOTONIC) > deadline) fail("not all peers were done before the time was up");
    }
}

/* Say that all are connected, and wait until stdin is closed or the time is up. */
static void be_ready(const struct crowd *crowd, int count) {
    printf("{\"ready\": %d, \"seconds\": %.3f}\n", count, seconds_of(CLOCK_MONOTONIC) - crowd->start);
    fflush(stdout);
    while (seconds_of(CLOCK_MONOTONIC) < crowd->deadline) {
        struct pollfd item = {.fd = STDIN_FILENO, .events = POLLIN};
        char bytes[64];
        if (poll(&item, 1, 500) > 0 && read(STDIN_FILENO, bytes, sizeof bytes) <= 0) return;
        check_processes();
    }
}

/* Have all processes end. */
static void end_crowd(const struct crowd *crowd) { close(crowd->stay); }
static void await_crowd(void) { while (wait(NULL) > 0) continue; }

#endif
