/* Workers of MDP 0.1 that give back what they get: REQUEST in, REPLY with the same body out.
 *
 *   mdp_worker --library LIBZMQ --endpoint ENDPOINT --count 1000 --services 100 --interval 2.5 --time-limit 120
 *
 * One process, one DEALER for each worker; worker number n offers echo-(n % services). All send a HEARTBEAT every
 * interval, spread evenly over it. Prints a line of JSON when all have said READY, which nobody answers; goes on
 * until stdin is closed or the time is up, takes leave, and prints another with what was received.
 *
 * The sockets are waited for by epoll: zmq_poll looks at every one each time, and with a thousand of them a request
 * would wait for its worker much longer than with one.
 */
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "dialog.h"

enum { MAX_WORKERS = 5000, AT_ONCE = 25, MANY_EVENTS = 256 };
enum { MDP_EMPTY, MDP_HEADER, MDP_COMMAND, MDP_CLIENT, MDP_DELIMITER, MDP_BODY };
static const char READY[] = "\1", REQUEST[] = "\2", REPLY[] = "\3", HEARTBEAT[] = "\4", DISCONNECT[] = "\5";

struct settings {
    const char *library, *endpoint;
    int count, services;
    double interval, time_limit;
};

struct workers {
    struct settings settings;
    void *sockets[MAX_WORKERS];
    struct message message;
    int connected;
    double start;  /* slot 0 is due then */
    uint64_t slot; /* the next one: worker slot % count is to send */
    size_t requests, heartbeats;
};

static struct settings parse(int count, char **arguments) {
    struct settings settings = {.count = 1, .services = 1, .interval = 2.5, .time_limit = 120};
    for (int i = 1; i < count; i += 2) {
        const char *name = arguments[i], *value = arguments[i + 1];
        if (i + 1 == count) fail("%s needs a value", name);
        if (!strcmp(name, "--library")) settings.library = value;
        else if (!strcmp(name, "--endpoint")) settings.endpoint = value;
        else if (!strcmp(name, "--count")) settings.count = atoi(value);
        else if (!strcmp(name, "--services")) settings.services = atoi(value);
        else if (!strcmp(name, "--interval")) settings.interval = atof(value);
        else if (!strcmp(name, "--time-limit")) settings.time_limit = atof(value);
        else fail("unknown option %s", name);
    }
    if (!settings.library || !settings.endpoint) fail("--library and --endpoint are needed");
    if (settings.count < 1 || settings.count > MAX_WORKERS) fail("--count must be 1 to %d", MAX_WORKERS);
    if (settings.services < 1 || settings.services > settings.count) fail("--services must be 1 to --count");
    return settings;
}

/* Say one thing to the broker; what is not NULL follows the command. */
static void say(void *socket, const char *command, const char *more) {
    send_text(socket, "", ZMQ_SNDMORE);
    send_text(socket, "MDPW01", ZMQ_SNDMORE);
    send_text(socket, command, more ? ZMQ_SNDMORE : 0);
    if (more) send_text(socket, more, 0);
}

/* Send a request back as its reply: all but the command is moved, not copied. */
static void reply(void *socket, struct message *request) {
    for (int i = 0; i < request->count; i++) {
        int more = i + 1 < request->count ? ZMQ_SNDMORE : 0;
        if (i == MDP_COMMAND) send_text(socket, REPLY, more);
        else if (zmq.msg_send(&request->parts[i], socket, ZMQ_DONTWAIT | more) < 0) fail_zmq("send");
    }
}

/* Do all that one worker has been sent. Only when nothing is left will its descriptor tell of more. */
static void work(struct workers *workers, void *socket) {
    struct message *message = &workers->message;
    while (receive_message(socket, message, ZMQ_DONTWAIT)) {
        if (is_frame(message, MDP_COMMAND, REQUEST) && message->count > MDP_BODY) {
            reply(socket, message);
            workers->requests++;
        } else if (is_frame(message, MDP_COMMAND, HEARTBEAT)) workers->heartbeats++;
        else fail("a worker was told to disconnect, or something unknown");
    }
}

/* Send every heartbeat that is due; gives the seconds until the next one. */
static double beat_all_due(struct workers *workers) {
    int count = workers->settings.count;
    double now = seconds_of(CLOCK_MONOTONIC), step = workers->settings.interval / count, due;
    while ((due = workers->start + (double) workers->slot * step) <= now) {
        int place = (int) (workers->slot++ % (uint64_t) count);
        if (place >= workers->connected) continue;
        say(workers->sockets[place], HEARTBEAT, NULL);
        work(workers, workers->sockets[place]);
    }
    return due - now;
}

/* Connect all, a few at a time: a listener's backlog is often 100. */
static void connect_all(struct workers *workers, void *context, int queue) {
    for (int i = 0; i < workers->settings.count; i++) {
        char name[32];
        int fd;
        size_t size = sizeof fd;
        void *socket = workers->sockets[i] = open_dealer(context, workers->settings.endpoint);
        if (zmq.getsockopt(socket, ZMQ_FD, &fd, &size)) fail_zmq("getsockopt");
        struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = (uint32_t) i}};
        if (epoll_ctl(queue, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
        snprintf(name, sizeof name, "echo-%d", i % workers->settings.services);
        say(socket, READY, name);
        work(workers, socket);
        workers->connected = i + 1;
        if (i % AT_ONCE == AT_ONCE - 1) usleep(5000);
        beat_all_due(workers);
    }
}

int main(int argument_count, char **arguments) {
    static struct workers workers;
    workers.settings = parse(argument_count, arguments);
    int count = workers.settings.count, queue = epoll_create1(0);
    load_zmq(workers.settings.library);
    raise_descriptor_limit();
    init_message(&workers.message);
    workers.start = seconds_of(CLOCK_MONOTONIC);
    double deadline = workers.start + workers.settings.time_limit;
    void *context = zmq.ctx_new();
    if (zmq.ctx_set(context, ZMQ_MAX_SOCKETS, count + 1)) fail_zmq("context");
    connect_all(&workers, context, queue);
    struct epoll_event end = {.events = EPOLLIN, .data = {.u32 = MAX_WORKERS}};
    if (epoll_ctl(queue, EPOLL_CTL_ADD, STDIN_FILENO, &end)) fail("stdin must be a pipe");
    printf("{\"ready\": %d, \"seconds\": %.3f}\n", count, seconds_of(CLOCK_MONOTONIC) - workers.start);
    fflush(stdout);

    for (int ended = 0; !ended;) {
        struct epoll_event events[MANY_EVENTS];
        double wait = beat_all_due(&workers);
        if (seconds_of(CLOCK_MONOTONIC) > deadline) fail("the workers were not told to end in time");
        int found = epoll_wait(queue, events, MANY_EVENTS, wait < 0.5 ? (int) (wait * 1000) + 1 : 500);
        for (int i = 0; i < found; i++) {
            char bytes[64];
            if (events[i].data.u32 != MAX_WORKERS) work(&workers, workers.sockets[events[i].data.u32]);
            else ended = read(STDIN_FILENO, bytes, sizeof bytes) <= 0;
        }
    }
    for (int i = 0; i < count; i++) {
        set_option(workers.sockets[i], ZMQ_LINGER, 1000);
        say(workers.sockets[i], DISCONNECT, NULL);
        zmq.close(workers.sockets[i]);
    }
    zmq.ctx_term(context);
    printf("{\"requests\": %zu, \"heartbeats\": %zu}\n", workers.requests, workers.heartbeats);
    return 0;
}
