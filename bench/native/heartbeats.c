/* Many workers that do nothing but show that they live.
 *
 *   heartbeats --library LIBZMQ --endpoint ENDPOINT --count 10000 --processes 4 --interval 1 --time-limit 400 \
 *              --options full
 *
 * Each DEALER negotiates as a worker and sends a HEARTBEAT every interval; all are spread evenly over it. Prints
 * a line of JSON when all have been accepted, goes on until stdin is closed, and prints another that says what
 * the broker answered. With --options full a heartbeat carries the time and the configuration's version, as
 * real workers send them; with --options none it carries nothing.
 */
#include "crowd.h"
#include "dialog.h"

struct settings { struct crowd_settings crowd; const char *options; double interval; };

/* What the workers of one process met with. */
struct tally {
    uint64_t sent, answered; /* heartbeats, and answers to them */
    uint64_t unanswered;     /* heartbeats that had no answer when the next was due */
    uint64_t probes;         /* heartbeats that answer nothing: the broker had missed this worker */
    uint64_t refused;        /* workers that were told to negotiate or were disconnected */
    uint64_t late;           /* heartbeats sent more than half an interval after they were due: not the broker's fault */
};

struct worker { void *socket; int awaiting; int refused; };

/* The workers of one process. */
struct workers {
    const struct settings *settings;
    struct worker *all;
    void *context;
    char name[64];
    int size, connected, version;
    double start, deadline; /* slot 0 is due at the start */
    uint64_t slot;          /* the next one: worker slot % size is to send */
    struct message message;
    struct tally tally;
};

static struct settings parse(int count, char **arguments) {
    struct settings settings = {.crowd = {.count = 10000, .processes = 4, .time_limit = 400}, .options = "full",
                                .interval = 1};
    for (int i = 1; i < count; i += 2) {
        const char *name = arguments[i], *value = arguments[i + 1];
        if (i + 1 == count) fail("%s needs a value", name);
        if (!strcmp(name, "--options")) settings.options = value;
        else if (!strcmp(name, "--interval")) settings.interval = atof(value);
        else if (!parse_crowd_option(&settings.crowd, name, value)) fail("unknown option %s", name);
    }
    check_crowd(&settings.crowd);
    return settings;
}

/* Take all that a worker has been sent. */
static void take_answers(struct workers *workers, struct worker *worker) {
    int full = !strcmp(workers->settings->options, "full");
    char options[256];
    while (receive_message(worker->socket, &workers->message, ZMQ_DONTWAIT)) {
        frame_text(&workers->message, OPTIONS, options, sizeof options);
        if (!is_command(&workers->message, "HEARTBEAT")) {
            workers->tally.refused += !worker->refused;
            worker->refused = 1;
        } else if (full ? !strstr(options, "\"reply_to\":") : !worker->awaiting) {
            workers->tally.probes++;
        } else {
            workers->tally.answered++;
            worker->awaiting = 0;
        }
    }
}

static void beat(struct workers *workers, struct worker *worker) {
    char options[128] = "{}";
    take_answers(workers, worker);
    workers->tally.unanswered += (uint64_t) worker->awaiting;
    if (!strcmp(workers->settings->options, "full"))
        snprintf(options, sizeof options, "{\"time\":%.6f,\"config_version\":%d}", seconds_of(CLOCK_REALTIME),
                 workers->version);
    send_command(worker->socket, "HEARTBEAT", options);
    worker->awaiting = 1;
    workers->tally.sent++;
}

/* Send every heartbeat that is due; gives the seconds until the next one. */
static double beat_all_due(struct workers *workers) {
    double now = seconds_of(CLOCK_MONOTONIC), step = workers->settings->interval / workers->size, due;
    while ((due = workers->start + (double) workers->slot * step) <= now) {
        int place = (int) (workers->slot++ % (uint64_t) workers->size);
        if (place >= workers->connected) continue;
        workers->tally.late += now - due > workers->settings->interval / 2;
        beat(workers, &workers->all[place]);
    }
    return due - now;
}

static void connect_some(void *state, int first, int count) {
    struct workers *workers = state;
    void *sockets[AT_ONCE];
    workers->version = connect_workers(workers->context, workers->settings->crowd.endpoint, sockets, count, first,
                                       workers->name, "echo", 1, workers->deadline);
    for (int i = 0; i < count; i++) workers->all[workers->connected++].socket = sockets[i];
    beat_all_due(workers); /* those that are ready already must not fall silent */
}

/* Give the broker two seconds to answer the last heartbeats. */
static void await_last_answers(struct workers *workers) {
    for (int turn = 0, left = 1; turn < 20 && left; turn++) {
        usleep(100000);
        left = 0;
        for (int i = 0; i < workers->size; i++) {
            take_answers(workers, &workers->all[i]);
            left += workers->all[i].awaiting;
        }
    }
}

/* One process of workers: connect, tell the parent, send heartbeats until it ends, report. */
static void be_workers(const struct share *share) {
    const struct settings *settings = share->settings;
    struct workers workers = {.settings = settings, .size = share->size, .context = crowd_context(share),
                              .deadline = share->deadline, .all = calloc((size_t) share->size, sizeof *workers.all)};
    if (!workers.all) fail("not enough memory");
    /* the processes take turns within one step */
    workers.start = seconds_of(CLOCK_MONOTONIC)
                    + settings->interval / share->size * share->number / settings->crowd.processes;
    init_message(&workers.message);
    snprintf(workers.name, sizeof workers.name, "bench-%d", (int) getpid());
    connect_all(share, connect_some, &workers);
    tell_parent(share, &workers.tally, sizeof workers.tally);
    /* what happened while connecting is not counted, but for the heartbeats that are still to be answered */
    workers.tally = (struct tally) {.refused = workers.tally.refused};
    for (int i = 0; i < share->size; i++) workers.tally.sent += (uint64_t) workers.all[i].awaiting;
    for (;;) {
        double wait = beat_all_due(&workers);
        if (parent_ends(share, wait > 0.001 ? wait : 0.001)) break;
        if (seconds_of(CLOCK_MONOTONIC) > share->deadline) fail("the workers were not told to end in time");
    }
    await_last_answers(&workers);
    tell_parent(share, &workers.tally, sizeof workers.tally);
}

static struct tally sum;

static void add(const void *record) {
    const struct tally *one = record;
    sum.sent += one->sent;
    sum.answered += one->answered;
    sum.unanswered += one->unanswered;
    sum.probes += one->probes;
    sum.refused += one->refused;
    sum.late += one->late;
}

int main(int argument_count, char **arguments) {
    struct settings settings = parse(argument_count, arguments);
    struct tally one;
    struct crowd crowd = start_crowd(&settings.crowd, be_workers, &settings);
    await_records(&crowd, &one, sizeof one, NULL, crowd.deadline);
    be_ready(&crowd, settings.crowd.count);
    end_crowd(&crowd);
    await_records(&crowd, &one, sizeof one, add, crowd.deadline + 10);
    await_crowd();
    printf("{\"sent\": %llu, \"answered\": %llu, \"unanswered\": %llu, \"probes\": %llu, \"refused\": %llu, "
           "\"late\": %llu}\n",
           (unsigned long long) sum.sent, (unsigned long long) sum.answered, (unsigned long long) sum.unanswered,
           (unsigned long long) sum.probes, (unsigned long long) sum.refused, (unsigned long long) sum.late);
    return 0;
}
