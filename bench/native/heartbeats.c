/* Many workers that do nothing but show that they live.
 *
 *   heartbeats --library LIBZMQ --endpoint ENDPOINT --count 10000 --processes 4 --interval 1 --time-limit 400 \
 *              --options full
 *
 * Each DEALER negotiates as a worker and sends a HEARTBEAT every interval; all are spread evenly over it. Prints
 * a line of JSON when all have been accepted, goes on until stdin is closed, and prints another that says what
 * the broker answered. With --options full a heartbeat carries the time and the configuration's version, as
 * real workers send them; with --options none it carries nothing.
 *
 * Several processes: a socket needs two file descriptors, and a process may often have no more than 20,000.
 */
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dialog.h"

enum { MAX_PROCESSES = 64 };

struct settings {
    const char *library, *endpoint, *options;
    int count, processes;
    double interval, time_limit;
};

/* What the workers of one process met with. */
struct tally {
    uint64_t sent, answered; /* heartbeats, and answers to them */
    uint64_t unanswered;     /* heartbeats that had no answer when the next was due */
    uint64_t probes;         /* heartbeats that answer nothing: the broker had missed this worker */
    uint64_t refused;        /* workers that were told to negotiate or were disconnected */
    uint64_t late;           /* heartbeats sent more than half an interval after they were due: not the broker's fault */
};

struct worker { void *socket; int awaiting; int refused; };

struct crowd {
    const struct settings *settings;
    struct worker *workers;
    int size, connected, version;
    double start;   /* slot 0 is due then */
    uint64_t slot;  /* the next one: worker slot % size is to send */
    struct message message;
    struct tally tally;
};

static struct settings parse(int count, char **arguments) {
    struct settings settings = {.options = "full", .count = 10000, .processes = 4, .interval = 1, .time_limit = 400};
    for (int i = 1; i < count; i += 2) {
        const char *name = arguments[i], *value = arguments[i + 1];
        if (i + 1 == count) fail("%s needs a value", name);
        if (!strcmp(name, "--library")) settings.library = value;
        else if (!strcmp(name, "--endpoint")) settings.endpoint = value;
        else if (!strcmp(name, "--options")) settings.options = value;
        else if (!strcmp(name, "--count")) settings.count = atoi(value);
        else if (!strcmp(name, "--processes")) settings.processes = atoi(value);
        else if (!strcmp(name, "--interval")) settings.interval = atof(value);
        else if (!strcmp(name, "--time-limit")) settings.time_limit = atof(value);
        else fail("unknown option %s", name);
    }
    if (!settings.library || !settings.endpoint) fail("--library and --endpoint are needed");
    if (settings.processes < 1 || settings.processes > MAX_PROCESSES)
        fail("--processes must be 1 to %d", MAX_PROCESSES);
    if (settings.count < settings.processes) fail("--count must be at least --processes");
    return settings;
}

static void raise_descriptor_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit); /* when refused, opening the sockets says so */
}

/* Take all that a worker has been sent. */
static void take_answers(struct crowd *crowd, struct worker *worker) {
    int full = !strcmp(crowd->settings->options, "full");
    char options[256];
    while (receive_message(worker->socket, &crowd->message, ZMQ_DONTWAIT)) {
        frame_text(&crowd->message, OPTIONS, options, sizeof options);
        if (!is_command(&crowd->message, "HEARTBEAT")) {
            crowd->tally.refused += !worker->refused;
            worker->refused = 1;
        } else if (full ? !strstr(options, "\"reply_to\":") : !worker->awaiting) {
            crowd->tally.probes++;
        } else {
            crowd->tally.answered++;
            worker->awaiting = 0;
        }
    }
}

static void beat(struct crowd *crowd, struct worker *worker) {
    char options[128] = "{}";
    take_answers(crowd, worker);
    crowd->tally.unanswered += (uint64_t) worker->awaiting;
    if (!strcmp(crowd->settings->options, "full"))
        snprintf(options, sizeof options, "{\"time\":%.6f,\"config_version\":%d}", seconds_of(CLOCK_REALTIME),
                 crowd->version);
    send_command(worker->socket, "HEARTBEAT", options);
    worker->awaiting = 1;
    crowd->tally.sent++;
}

/* Send every heartbeat that is due; gives the seconds until the next one. */
static double beat_all_due(struct crowd *crowd) {
    double now = seconds_of(CLOCK_MONOTONIC), step = crowd->settings->interval / crowd->size, due;
    while ((due = crowd->start + (double) crowd->slot * step) <= now) {
        int place = (int) (crowd->slot++ % (uint64_t) crowd->size);
        if (place >= crowd->connected) continue;
        crowd->tally.late += now - due > crowd->settings->interval / 2;
        beat(crowd, &crowd->workers[place]);
    }
    return due - now;
}

static void connect_crowd(struct crowd *crowd, void *context, const char *name, double deadline) {
    void *sockets[AT_ONCE];
    while (crowd->connected < crowd->size) {
        int left = crowd->size - crowd->connected, some = left < AT_ONCE ? left : AT_ONCE;
        crowd->version = connect_workers(context, crowd->settings->endpoint, sockets, some, crowd->connected, name,
                                         "echo", 1, deadline);
        for (int i = 0; i < some; i++) crowd->workers[crowd->connected++].socket = sockets[i];
        beat_all_due(crowd); /* those that are ready already must not fall silent */
    }
}

/* Give the broker two seconds to answer the last heartbeats. */
static void await_last_answers(struct crowd *crowd) {
    for (int turn = 0, left = 1; turn < 20 && left; turn++) {
        usleep(100000);
        left = 0;
        for (int i = 0; i < crowd->size; i++) {
            take_answers(crowd, &crowd->workers[i]);
            left += crowd->workers[i].awaiting;
        }
    }
}

/* One process of workers: connect, tell the parent, send heartbeats until the parent closes the pipe, report. */
static void be_workers(const struct settings *settings, int size, int number, int result_pipe, int stay_pipe,
                       double deadline) {
    struct crowd crowd = {.settings = settings, .size = size, .workers = calloc((size_t) size, sizeof *crowd.workers)};
    /* the processes take turns within one step */
    crowd.start = seconds_of(CLOCK_MONOTONIC) + settings->interval / size * number / settings->processes;
    void *context = zmq.ctx_new();
    char name[64];
    if (!crowd.workers || zmq.ctx_set(context, ZMQ_MAX_SOCKETS, size + 1)) fail_zmq("context");
    init_message(&crowd.message);
    snprintf(name, sizeof name, "bench-%d", (int) getpid());
    connect_crowd(&crowd, context, name, deadline);
    if (write(result_pipe, &crowd.tally, sizeof crowd.tally) != sizeof crowd.tally) fail("the parent is gone");
    /* what happened while connecting is not counted, but for the heartbeats that are still to be answered */
    crowd.tally = (struct tally) {.refused = crowd.tally.refused};
    for (int i = 0; i < size; i++) crowd.tally.sent += (uint64_t) crowd.workers[i].awaiting;
    for (;;) {
        double wait = beat_all_due(&crowd);
        struct pollfd item = {.fd = stay_pipe, .events = POLLIN};
        if (poll(&item, 1, wait > 0.001 ? (int) (wait * 1000) : 1) > 0) break;
        if (seconds_of(CLOCK_MONOTONIC) > deadline) fail("the workers were not told to end in time");
    }
    await_last_answers(&crowd);
    if (write(result_pipe, &crowd.tally, sizeof crowd.tally) != sizeof crowd.tally) fail("the parent is gone");
    _exit(0); /* closing thousands of sockets one by one would take longer than the kernel's way */
}

static void check_children(void) {
    int status;
    if (waitpid(-1, &status, WNOHANG) > 0 && status != 0) fail("a process of workers failed");
}

/* Wait until every process has told its tally, and give the sum. A pipe's writes of this size are whole. */
static struct tally await_tallies(int result_pipe, int processes, double deadline) {
    struct tally sum = {0};
    for (int told = 0; told < processes;) {
        struct pollfd item = {.fd = result_pipe, .events = POLLIN};
        struct tally one;
        if (poll(&item, 1, 200) > 0) {
            if (read(result_pipe, &one, sizeof one) != sizeof one) fail("a process of workers failed");
            sum.sent += one.sent;
            sum.answered += one.answered;
            sum.unanswered += one.unanswered;
            sum.probes += one.probes;
            sum.refused += one.refused;
            sum.late += one.late;
            told++;
        }
        check_children();
        if (seconds_of(CLOCK_MONOTONIC) > deadline) fail("not all workers were done before the time was up");
    }
    return sum;
}

static void await_end(double deadline) {
    while (seconds_of(CLOCK_MONOTONIC) < deadline) {
        struct pollfd item = {.fd = STDIN_FILENO, .events = POLLIN};
        char bytes[64];
        if (poll(&item, 1, 500) > 0 && read(STDIN_FILENO, bytes, sizeof bytes) <= 0) return;
        check_children();
    }
}

int main(int argument_count, char **arguments) {
    struct settings settings = parse(argument_count, arguments);
    int results[2], stay[2];
    double start = seconds_of(CLOCK_MONOTONIC), deadline = start + settings.time_limit;
    load_zmq(settings.library);
    raise_descriptor_limit();
    if (pipe(results) || pipe(stay)) fail("no pipe");
    for (int i = 0; i < settings.processes; i++) {
        pid_t child = fork();
        if (child < 0) fail("no process");
        if (child) continue;
        close(results[0]);
        close(stay[1]); /* so that the children see the parent's end, however it comes */
        int share = settings.count / settings.processes + (i < settings.count % settings.processes);
        be_workers(&settings, share, i, results[1], stay[0], deadline);
    }
    close(results[1]); /* so that the end of all children is seen */
    close(stay[0]);
    await_tallies(results[0], settings.processes, deadline);
    printf("{\"ready\": %d, \"seconds\": %.3f}\n", settings.count, seconds_of(CLOCK_MONOTONIC) - start);
    fflush(stdout);
    await_end(deadline);
    close(stay[1]);
    struct tally tally = await_tallies(results[0], settings.processes, deadline + 10);
    while (wait(NULL) > 0) continue;
    printf("{\"sent\": %llu, \"answered\": %llu, \"unanswered\": %llu, \"probes\": %llu, \"refused\": %llu, "
           "\"late\": %llu}\n",
           (unsigned long long) tally.sent, (unsigned long long) tally.answered,
           (unsigned long long) tally.unanswered, (unsigned long long) tally.probes,
           (unsigned long long) tally.refused, (unsigned long long) tally.late);
    return 0;
}
