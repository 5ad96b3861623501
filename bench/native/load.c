/* The load generator: sends requests over DEALER connections, keeps a number in flight, checks every reply.
 *
 *   load --library LIBZMQ --endpoint ENDPOINT --count 100000 --window 1000 --connections 10 --time-limit 60 \
 *        --frame ECHO --frame "" --frame @body --body-size 100 --reply-frames 1 --reply-body 0
 *
 * Prints one line of JSON; with a window of 1 every request is timed by itself, and percentiles are added.
 */
#include "request.h"

struct settings {
    const char *library, *endpoint;
    size_t count, window, connections;
    double time_limit;
    struct request request;
};

struct load {
    struct settings settings;
    void **sockets;
    zmq_pollitem_t *items;
    unsigned char *bodies;  /* one buffer for each request in flight */
    uint64_t *serial_of;    /* the serial number a buffer is out with; 0 when its reply is back */
    size_t sent, received;
    double deadline;
};

static struct settings parse(int count, char **arguments) {
    struct settings settings = {.count = 100000, .window = 1000, .connections = 1, .time_limit = 60,
                                .request = {.body_size = 100, .reply_frames = 1, .reply_body = 0}};
    for (int i = 1; i < count; i += 2) {
        const char *name = arguments[i], *value = arguments[i + 1];
        if (i + 1 == count) fail("%s needs a value", name);
        if (parse_request_option(&settings.request, name, value)) continue;
        if (!strcmp(name, "--library")) settings.library = value;
        else if (!strcmp(name, "--endpoint")) settings.endpoint = value;
        else if (!strcmp(name, "--count")) settings.count = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--window")) settings.window = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--connections")) settings.connections = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--time-limit")) settings.time_limit = atof(value);
        else fail("unknown option %s", name);
    }
    if (!settings.library || !settings.endpoint) fail("--library and --endpoint are needed");
    if (!settings.count || !settings.window || !settings.connections) fail("counts begin at 1");
    if (settings.connections > settings.window) settings.connections = settings.window;
    check_request(&settings.request);
    return settings;
}

static void check_time(const struct load *load) {
    if (seconds_of(CLOCK_MONOTONIC) > load->deadline)
        fail("not done after %g s: %zu of %zu requests sent, %zu answered", load->settings.time_limit,
             load->sent, load->settings.count, load->received);
}

static void send_next(struct load *load, size_t connection, size_t slot) {
    struct stamp stamp = {.serial = ++load->sent, .slot = slot};
    load->serial_of[slot] = stamp.serial;
    send_request(load->sockets[connection], &load->settings.request,
                 load->bodies + slot * load->settings.request.body_size, stamp);
}

/* Receive one reply if there is one, and free its buffer: a reply that comes twice finds it free. */
static int take_reply(struct load *load, size_t connection, size_t *slot, int flags) {
    struct stamp stamp = {0, 0};
    if (!receive_reply(load->sockets[connection], &load->settings.request, load->bodies,
                       load->settings.window, &stamp, flags))
        return 0;
    if (load->serial_of[stamp.slot] != stamp.serial) fail("a reply came twice");
    load->serial_of[stamp.slot] = 0;
    load->received++;
    *slot = stamp.slot;
    return 1;
}

/* Keep the window full until all is sent, and go on until all is answered. */
static void run_window(struct load *load) {
    size_t connections = load->settings.connections, count = load->settings.count, slot;
    for (slot = 0; slot < load->settings.window && load->sent < count; slot++)
        send_next(load, slot % connections, slot);
    while (load->received < count) {
        size_t before = load->received;
        for (size_t connection = 0; connection < connections; connection++)
            while (take_reply(load, connection, &slot, ZMQ_DONTWAIT))
                if (load->sent < count) send_next(load, connection, slot);
        if (load->received == before) zmq.poll(load->items, (int) connections, 100);
        check_time(load);
    }
}

/* One request after the other, each timed; the times are in seconds. */
static void run_one_by_one(struct load *load, double *times) {
    size_t slot = 0;
    for (size_t i = 0; i < load->settings.count; i++) {
        double start = seconds_of(CLOCK_MONOTONIC);
        send_next(load, 0, slot);
        while (!take_reply(load, 0, &slot, 0)) check_time(load);
        times[i] = seconds_of(CLOCK_MONOTONIC) - start;
    }
}

static int compare_times(const void *left, const void *right) {
    double difference = *(const double *) left - *(const double *) right;
    return (difference > 0) - (difference < 0);
}

static void open_connections(struct load *load, void *context) {
    for (size_t i = 0; i < load->settings.connections; i++) {
        load->sockets[i] = open_dealer(context, load->settings.endpoint);
        set_option(load->sockets[i], ZMQ_RCVTIMEO, 1000);
        load->items[i] = (zmq_pollitem_t) {.socket = load->sockets[i], .events = ZMQ_POLLIN};
    }
}

/* One request over every connection before the clock starts, so that connecting is not measured. */
static void warm_up(struct load *load) {
    size_t slot = 0;
    for (size_t connection = 0; connection < load->settings.connections; connection++) {
        send_next(load, connection, slot);
        while (!take_reply(load, connection, &slot, 0)) check_time(load);
    }
    load->sent = load->received = 0;
}

int main(int argument_count, char **arguments) {
    struct load load = {.settings = parse(argument_count, arguments)};
    const struct settings *settings = &load.settings;
    size_t body_size = settings->request.body_size;
    load_zmq(settings->library);
    load.sockets = calloc(settings->connections, sizeof *load.sockets);
    load.items = calloc(settings->connections, sizeof *load.items);
    load.bodies = malloc(settings->window * body_size);
    load.serial_of = calloc(settings->window, sizeof *load.serial_of);
    double *times = settings->window == 1 ? calloc(settings->count, sizeof *times) : NULL;
    if (!load.sockets || !load.items || !load.bodies || !load.serial_of || (settings->window == 1 && !times))
        fail("not enough memory");
    for (size_t slot = 0; slot < settings->window; slot++)
        fill_body(load.bodies + slot * body_size, body_size);
    load.deadline = seconds_of(CLOCK_MONOTONIC) + settings->time_limit;

    void *context = zmq.ctx_new();
    open_connections(&load, context);
    warm_up(&load);
    double start = seconds_of(CLOCK_MONOTONIC), cpu_start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    if (times) run_one_by_one(&load, times);
    else run_window(&load);
    double seconds = seconds_of(CLOCK_MONOTONIC) - start;
    double cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;

    printf("{\"requests\": %zu, \"warm_up_requests\": %zu, \"seconds\": %.6f, \"requests_per_s\": %.1f, "
           "\"mb_per_s\": %.3f, \"load_cpu_s\": %.6f",
           load.received, settings->connections, seconds, (double) load.received / seconds,
           (double) load.received * (double) body_size / seconds / 1e6, cpu);
    if (times) {
        qsort(times, settings->count, sizeof *times, compare_times);
        printf(", \"p50_us\": %.2f, \"p99_us\": %.2f", times[settings->count / 2] * 1e6,
               times[settings->count * 99 / 100] * 1e6);
    }
    printf("}\n");
    for (size_t i = 0; i < settings->connections; i++) zmq.close(load.sockets[i]);
    zmq.ctx_term(context);
    return 0;
}
