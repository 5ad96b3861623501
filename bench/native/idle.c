/* Many clients that are connected and say nothing.
 *
 *   idle --library LIBZMQ --endpoint ENDPOINT --count 10000 --processes 4 --time-limit 120 \
 *        --frame ECHO --frame "" --frame @body --body-size 100 --reply-frames 1 --reply-body 0
 *
 * Each DEALER does one request, to prove that it is connected. Then one line of JSON says so, and all stay
 * connected until stdin is closed or the time is up. Several processes: a socket needs two file descriptors,
 * and a process may often have no more than 20,000.
 */
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "request.h"

enum { MAX_PROCESSES = 64 };
enum { AT_ONCE = 25 }; /* connections that one process opens at once: a listener's backlog is often 100 */

struct settings {
    const char *library, *endpoint;
    int count, processes;
    double time_limit;
    struct request request;
};

static struct settings parse(int count, char **arguments) {
    struct settings settings = {.count = 10000, .processes = 4, .time_limit = 120,
                                .request = {.body_size = 100, .reply_frames = 1, .reply_body = 0}};
    for (int i = 1; i < count; i += 2) {
        const char *name = arguments[i], *value = arguments[i + 1];
        if (i + 1 == count) fail("%s needs a value", name);
        if (parse_request_option(&settings.request, name, value)) continue;
        if (!strcmp(name, "--library")) settings.library = value;
        else if (!strcmp(name, "--endpoint")) settings.endpoint = value;
        else if (!strcmp(name, "--count")) settings.count = atoi(value);
        else if (!strcmp(name, "--processes")) settings.processes = atoi(value);
        else if (!strcmp(name, "--time-limit")) settings.time_limit = atof(value);
        else fail("unknown option %s", name);
    }
    if (!settings.library || !settings.endpoint) fail("--library and --endpoint are needed");
    if (settings.processes < 1 || settings.processes > MAX_PROCESSES)
        fail("--processes must be 1 to %d", MAX_PROCESSES);
    check_request(&settings.request);
    return settings;
}

static void raise_descriptor_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit); /* when refused, opening the sockets says so */
}

/* Connect some sockets and do one request on each. */
static void connect_some(const struct settings *settings, void *context, void **sockets, int count,
                         double deadline) {
    const struct request *request = &settings->request;
    unsigned char *bodies = malloc((size_t) count * request->body_size);
    if (!bodies) fail("not enough memory");
    for (int i = 0; i < count; i++) {
        sockets[i] = open_dealer(context, settings->endpoint);
        set_option(sockets[i], ZMQ_RCVTIMEO, 1000);
        fill_body(bodies + (size_t) i * request->body_size, request->body_size);
        send_request(sockets[i], request, bodies + (size_t) i * request->body_size,
                     (struct stamp) {.serial = 1, .slot = (uint64_t) i});
    }
    for (int i = 0; i < count; i++) {
        struct stamp stamp = {0, 0};
        while (!receive_reply(sockets[i], request, bodies, (size_t) count, &stamp, 0))
            if (seconds_of(CLOCK_MONOTONIC) > deadline) fail("a client got no answer before the time was up");
        if (stamp.slot != (uint64_t) i) fail("a client got another client's reply");
    }
    free(bodies);
}

/* One process of clients: connect, tell the parent, stay until the parent closes the pipe. */
static void be_clients(const struct settings *settings, int count, int ready_pipe, int stay_pipe,
                       double deadline) {
    void **sockets = calloc((size_t) count + 1, sizeof *sockets), *context = zmq.ctx_new();
    if (!sockets || zmq.ctx_set(context, ZMQ_MAX_SOCKETS, count + 1)) fail_zmq("context");
    for (int done = 0; done < count; done += AT_ONCE)
        connect_some(settings, context, sockets + done, count - done < AT_ONCE ? count - done : AT_ONCE,
                     deadline);
    char byte = 1;
    if (write(ready_pipe, &byte, 1) != 1) fail("the parent is gone");
    while (read(stay_pipe, &byte, 1) < 0 && errno == EINTR) continue;
    _exit(0); /* closing thousands of sockets one by one would take longer than the kernel's way */
}

/* Wait until every process says that its clients are connected; a process that fails closes its end. */
static void await_ready(int ready_pipe, int processes, double deadline) {
    for (int ready = 0; ready < processes;) {
        struct pollfd item = {.fd = ready_pipe, .events = POLLIN};
        char byte;
        if (poll(&item, 1, 200) > 0) {
            if (read(ready_pipe, &byte, 1) != 1) fail("a process of clients failed");
            ready++;
        }
        if (waitpid(-1, NULL, WNOHANG) > 0) fail("a process of clients ended early");
        if (seconds_of(CLOCK_MONOTONIC) > deadline)
            fail("not all clients were connected before the time was up");
    }
}

static void await_end(double deadline) {
    double left;
    while ((left = deadline - seconds_of(CLOCK_MONOTONIC)) > 0) {
        struct pollfd item = {.fd = STDIN_FILENO, .events = POLLIN};
        char bytes[64];
        if (poll(&item, 1, (int) (left * 1000) + 1) > 0 && read(STDIN_FILENO, bytes, sizeof bytes) <= 0)
            return;
    }
}

int main(int argument_count, char **arguments) {
    struct settings settings = parse(argument_count, arguments);
    int ready[2], stay[2];
    double start = seconds_of(CLOCK_MONOTONIC), deadline = start + settings.time_limit;
    load_zmq(settings.library);
    raise_descriptor_limit();
    if (pipe(ready) || pipe(stay)) fail("no pipe");
    for (int i = 0; i < settings.processes; i++) {
        pid_t child = fork();
        if (child < 0) fail("no process");
        if (child) continue;
        close(ready[0]);
        close(stay[1]); /* so that the children see the parent's end, however it comes */
        int share = settings.count / settings.processes + (i < settings.count % settings.processes);
        be_clients(&settings, share, ready[1], stay[0], deadline);
    }
    close(ready[1]);
    close(stay[0]);
    await_ready(ready[0], settings.processes, deadline);
    printf("{\"ready\": %d, \"seconds\": %.3f}\n", settings.count, seconds_of(CLOCK_MONOTONIC) - start);
    fflush(stdout);
    await_end(deadline);
    close(stay[1]);
    while (wait(NULL) > 0) continue;
    return 0;
}
