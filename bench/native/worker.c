/* Workers that give back what they get: TASK in, TASKREPLY with the same payload out.
 *
 *   worker --library LIBZMQ --endpoint ENDPOINT --count 8 --window 100 --service echo --time-limit 120
 *
 * One process, one DEALER for each worker. Prints a line of JSON when all have been accepted, goes on until
 * stdin is closed or the time is up, takes leave, and prints another with the number of tasks.
 */
#include <unistd.h>

#include "dialog.h"

enum { MAX_WORKERS = 256 };
static const double HEARTBEAT_SECONDS = 2.5;

struct settings {
    const char *library, *endpoint, *service;
    int count, window;
    double time_limit;
};

static struct settings parse(int count, char **arguments) {
    struct settings settings = {.service = "echo", .count = 1, .window = 100, .time_limit = 120};
    for (int i = 1; i < count; i += 2) {
        const char *name = arguments[i], *value = arguments[i + 1];
        if (i + 1 == count) fail("%s needs a value", name);
        if (!strcmp(name, "--library")) settings.library = value;
        else if (!strcmp(name, "--endpoint")) settings.endpoint = value;
        else if (!strcmp(name, "--service")) settings.service = value;
        else if (!strcmp(name, "--count")) settings.count = atoi(value);
        else if (!strcmp(name, "--window")) settings.window = atoi(value);
        else if (!strcmp(name, "--time-limit")) settings.time_limit = atof(value);
        else fail("unknown option %s", name);
    }
    if (!settings.library || !settings.endpoint) fail("--library and --endpoint are needed");
    if (settings.count < 1 || settings.count > MAX_WORKERS) fail("--count must be 1 to %d", MAX_WORKERS);
    return settings;
}

/* Send a task back as its reply: all but the command is moved, not copied. */
static void reply(void *socket, struct message *task) {
    for (int i = 0; i < task->count; i++) {
        int more = i + 1 < task->count ? ZMQ_SNDMORE : 0;
        if (i == COMMAND) send_text(socket, "TASKREPLY", more);
        else if (i == OPTIONS) send_text(socket, "", more);
        else if (zmq.msg_send(&task->parts[i], socket, ZMQ_DONTWAIT | more) < 0) fail_zmq("send");
    }
}

/* Do all that one worker has been sent; gives the number of tasks. */
static size_t work(void *socket, struct message *message) {
    size_t done = 0;
    while (receive_message(socket, message, ZMQ_DONTWAIT)) {
        char command[64], options[256];
        if (is_command(message, "TASK")) {
            reply(socket, message);
            done++;
        } else if (!is_command(message, "HEARTBEAT"))
            fail("a worker got %s %s", frame_text(message, COMMAND, command, sizeof command),
                 frame_text(message, OPTIONS, options, sizeof options));
    }
    return done;
}

int main(int argument_count, char **arguments) {
    struct settings settings = parse(argument_count, arguments);
    double start = seconds_of(CLOCK_MONOTONIC), deadline = start + settings.time_limit;
    void *sockets[MAX_WORKERS];
    zmq_pollitem_t items[MAX_WORKERS + 1] = {{.fd = STDIN_FILENO, .events = ZMQ_POLLIN}};
    char name[64], bytes[64];
    struct message message;
    size_t tasks = 0;
    load_zmq(settings.library);
    init_message(&message);
    snprintf(name, sizeof name, "bench-%d", (int) getpid());
    void *context = zmq.ctx_new();
    connect_workers(context, settings.endpoint, sockets, settings.count, 0, name, settings.service, settings.window,
                    deadline);
    for (int i = 0; i < settings.count; i++)
        items[i + 1] = (zmq_pollitem_t) {.socket = sockets[i], .events = ZMQ_POLLIN};
    printf("{\"ready\": %d, \"seconds\": %.3f}\n", settings.count, seconds_of(CLOCK_MONOTONIC) - start);
    fflush(stdout);

    double next_heartbeat = seconds_of(CLOCK_MONOTONIC) + HEARTBEAT_SECONDS;
    for (;;) {
        double now = seconds_of(CLOCK_MONOTONIC);
        if (now > deadline) fail("the workers were not told to end in time");
        if (now >= next_heartbeat) {
            next_heartbeat = now + HEARTBEAT_SECONDS;
            for (int i = 0; i < settings.count; i++) send_command(sockets[i], "HEARTBEAT", "{}");
        }
        if (zmq.poll(items, settings.count + 1, 500) < 0 && errno != EINTR) fail_zmq("poll");
        for (int i = 0; i < settings.count; i++)
            if (items[i + 1].revents) tasks += work(sockets[i], &message);
        if (items[0].revents && read(STDIN_FILENO, bytes, sizeof bytes) <= 0) break;
    }
    for (int i = 0; i < settings.count; i++) {
        set_option(sockets[i], ZMQ_LINGER, 1000);
        send_command(sockets[i], "DISCONNECT", "");
        zmq.close(sockets[i]);
    }
    zmq.ctx_term(context);
    printf("{\"tasks\": %zu}\n", tasks);
    return 0;
}
