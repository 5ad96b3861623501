/* Many clients that are connected and say nothing.
 *
 *   idle --library LIBZMQ --endpoint ENDPOINT --count 10000 --processes 4 --time-limit 120 \
 *        --frame ECHO --frame "" --frame @body --body-size 100 --reply-frames 1 --reply-body 0
 *
 * Each DEALER does one request, to prove that it is connected. Then one line of JSON says so, and all stay
 * connected until stdin is closed or the time is up.
 */
#include "crowd.h"
#include "request.h"

struct settings { struct crowd_settings crowd; struct request request; };

/* The clients of one process. */
struct clients { const struct settings *settings; void *context, **sockets; double deadline; };

static struct settings parse(int count, char **arguments) {
    struct settings settings = {.crowd = {.count = 10000, .processes = 4, .time_limit = 120},
                                .request = {.body_size = 100, .reply_frames = 1, .reply_body = 0}};
    for (int i = 1; i < count; i += 2) {
        const char *name = arguments[i], *value = arguments[i + 1];
        if (i + 1 == count) fail("%s needs a value", name);
        if (!parse_request_option(&settings.request, name, value) && !parse_crowd_option(&settings.crowd, name, value))
            fail("unknown option %s", name);
    }
    check_crowd(&settings.crowd);
    check_request(&settings.request);
    return settings;
}

/* Connect some clients and do one request on each. */
static void connect_some(void *state, int first, int count) {
    struct clients *clients = state;
    const struct request *request = &clients->settings->request;
    void **sockets = clients->sockets + first;
    unsigned char *bodies = malloc((size_t) count * request->body_size);
    if (!bodies) fail("not enough memory");
    for (int i = 0; i < count; i++) {
        sockets[i] = open_dealer(clients->context, clients->settings->crowd.endpoint);
        set_option(sockets[i], ZMQ_RCVTIMEO, 1000);
        fill_body(bodies + (size_t) i * request->body_size, request->body_size);
        send_request(sockets[i], request, bodies + (size_t) i * request->body_size,
                     (struct stamp) {.serial = 1, .slot = (uint64_t) i});
    }
    for (int i = 0; i < count; i++) {
        struct stamp stamp = {0, 0};
        while (!receive_reply(sockets[i], request, bodies, (size_t) count, &stamp, 0))
            if (seconds_of(CLOCK_MONOTONIC) > clients->deadline)
                fail("a client got no answer before the time was up");
        if (stamp.slot != (uint64_t) i) fail("a client got another client's reply");
    }
    free(bodies);
}

/* One process of clients: connect, tell the parent, stay until it ends. */
static void be_clients(const struct share *share) {
    struct clients clients = {.settings = share->settings, .context = crowd_context(share), .deadline = share->deadline,
                              .sockets = calloc((size_t) share->size, sizeof *clients.sockets)};
    char there = 1;
    if (!clients.sockets) fail("not enough memory");
    connect_all(share, connect_some, &clients);
    tell_parent(share, &there, sizeof there);
    while (!parent_ends(share, 60)) continue;
}

int main(int argument_count, char **arguments) {
    struct settings settings = parse(argument_count, arguments);
    char there;
    struct crowd crowd = start_crowd(&settings.crowd, be_clients, &settings);
    await_records(&crowd, &there, sizeof there, NULL, crowd.deadline);
    be_ready(&crowd, settings.crowd.count);
    end_crowd(&crowd);
    await_crowd();
    return 0;
}
