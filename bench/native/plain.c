/* The baseline of heartbeats: what libzmq alone costs. A ROUTER that answers a worker's messages as a broker does,
 * frame for frame, and knows nothing of workers: no deadlines, no states, no checks.
 *
 *   plain LIBZMQ ENDPOINT
 *
 * Prints "ready" when bound; ends on SIGTERM or SIGINT.
 */
#include <signal.h>

#include "dialog.h"

static volatile sig_atomic_t stopping;

static void stop(int signal_number) { (void) signal_number; stopping = 1; }

/* At a ROUTER the peer's id comes first. */
enum { ID, ROUTER_HEADER, ROUTER_COMMAND, ROUTER_OPTIONS };

static void give_back(void *router, zmq_msg_t *part) {
    /* sending moves the content and leaves the message empty: nothing is copied */
    if (zmq.msg_send(part, router, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) fail_zmq("send");
}

static void answer_heartbeat(void *router, struct message *message) {
    char asked[256], options[256];
    const char *time = strstr(frame_text(message, ROUTER_OPTIONS, asked, sizeof asked), "\"time\":");
    int size = snprintf(options, sizeof options, "{\"time\":%.6f,\"config_version\":1", seconds_of(CLOCK_REALTIME));
    if (time)
        size += snprintf(options + size, sizeof options - (size_t) size, ",\"reply_to\":%.6f",
                         atof(strchr(time, ':') + 1));
    snprintf(options + size, sizeof options - (size_t) size, "}");
    give_back(router, &message->parts[ID]);
    give_back(router, &message->parts[ROUTER_HEADER]);
    give_back(router, &message->parts[ROUTER_COMMAND]);
    send_text(router, options, 0);
}

static void answer_other(void *router, struct message *message) {
    const char *command = is_frame(message, ROUTER_COMMAND, "READY") ? "READYOK" : "CONFIGACK";
    give_back(router, &message->parts[ID]);
    give_back(router, &message->parts[ROUTER_HEADER]);
    send_text(router, command, ZMQ_SNDMORE);
    send_text(router, "{\"config_version\":1}", 0);
}

int main(int argument_count, char **arguments) {
    if (argument_count != 3) fail("usage: plain LIBZMQ ENDPOINT");
    load_zmq(arguments[1]);
    raise_descriptor_limit();
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    void *context = zmq.ctx_new(), *router = zmq.socket(context, ZMQ_ROUTER);
    if (!router) fail_zmq("socket");
    set_option(router, ZMQ_LINGER, 0);
    if (zmq.bind(router, arguments[2])) fail_zmq(arguments[2]);
    printf("ready\n");
    fflush(stdout);

    struct message message;
    init_message(&message);
    zmq_pollitem_t item = {.socket = router, .events = ZMQ_POLLIN};
    while (!stopping) {
        /* a bounded wait: a signal between the test above and the poll would otherwise be slept over */
        if (zmq.poll(&item, 1, 500) < 0 && errno != EINTR) fail_zmq("poll");
        while (!stopping && receive_message(router, &message, ZMQ_DONTWAIT)) {
            if (message.count <= ROUTER_OPTIONS) fail("a message has %d frames only", message.count);
            if (is_frame(&message, ROUTER_COMMAND, "HEARTBEAT")) answer_heartbeat(router, &message);
            else answer_other(router, &message);
        }
    }
    zmq.close(router);
    zmq.ctx_term(context);
    return 0;
}
