/* The baseline of a Majordomo broker in C: what libzmq alone costs. One ROUTER, one service.
 *
 *   mdp_broker LIBZMQ ENDPOINT
 *
 * Requests go to the worker that has waited longest, in order, and wait for one when there is none; frames are moved,
 * not copied, and the client's address travels with the request. It sends no heartbeats and expects none: a worker is
 * there until it says DISCONNECT. mmi.workers is answered with a list of as many zeros, for the bench. Prints "ready"
 * when bound; ends on SIGTERM or SIGINT.
 */
#include <signal.h>

#include "dialog.h"

enum { MOST_WORKERS = 64, MOST_REQUESTS = 4096 };
enum { PEER, EMPTY, SIDE, SERVICE, CLIENT_BODY };             /* of a client's message */
enum { WORKER_COMMAND = SERVICE, CLIENT, DELIMITER, WORKER_BODY }; /* of a worker's */

struct request { zmq_msg_t client, body; };

struct broker {
    void *router;
    struct message message;
    struct request requests[MOST_REQUESTS];
    zmq_msg_t waiting[MOST_WORKERS]; /* the addresses of workers */
    unsigned long requests_in, requests_out, workers_in, workers_out;
    int workers;
    char service[64];
};

static volatile sig_atomic_t stopping;

static void stop(int signal_number) { (void) signal_number; stopping = 1; }

/* Send a frame; it is empty afterwards. */
static void move(struct broker *broker, zmq_msg_t *part, int flags) {
    if (zmq.msg_send(part, broker->router, ZMQ_DONTWAIT | flags) < 0) fail_zmq("send");
}

/* Keep a frame for later. */
static void keep(zmq_msg_t *place, zmq_msg_t *part) {
    if (zmq.msg_move(place, part)) fail_zmq("msg_move");
}

/* Give requests to workers as long as there are both. */
static void dispatch(struct broker *broker) {
    while (broker->requests_out < broker->requests_in && broker->workers_out < broker->workers_in) {
        struct request *request = &broker->requests[broker->requests_out++ % MOST_REQUESTS];
        move(broker, &broker->waiting[broker->workers_out++ % MOST_WORKERS], ZMQ_SNDMORE);
        send_text(broker->router, "", ZMQ_SNDMORE);
        send_text(broker->router, "MDPW01", ZMQ_SNDMORE);
        send_text(broker->router, "\2", ZMQ_SNDMORE);
        move(broker, &request->client, ZMQ_SNDMORE);
        send_text(broker->router, "", ZMQ_SNDMORE);
        move(broker, &request->body, 0);
    }
}

static void worker_waits(struct broker *broker) {
    keep(&broker->waiting[broker->workers_in++ % MOST_WORKERS], &broker->message.parts[PEER]);
    dispatch(broker);
}

static void tell_workers(struct broker *broker) {
    char list[2 * MOST_WORKERS + 2] = "[";
    for (int i = 0; i < broker->workers; i++) strcat(list, i ? ",0" : "0");
    strcat(list, "]");
    for (int i = PEER; i <= SERVICE; i++) move(broker, &broker->message.parts[i], ZMQ_SNDMORE);
    send_text(broker->router, "200", ZMQ_SNDMORE);
    send_text(broker->router, list, 0);
}

static void from_client(struct broker *broker) {
    struct message *message = &broker->message;
    if (is_frame(message, SERVICE, "mmi.workers")) {
        tell_workers(broker);
        return;
    }
    if (message->count != CLIENT_BODY + 1) fail("a request has one body");
    if (broker->requests_in - broker->requests_out == MOST_REQUESTS) fail("too many requests wait");
    struct request *request = &broker->requests[broker->requests_in++ % MOST_REQUESTS];
    keep(&request->client, &message->parts[PEER]);
    keep(&request->body, &message->parts[CLIENT_BODY]);
    dispatch(broker);
}

static void from_worker(struct broker *broker) {
    struct message *message = &broker->message;
    if (is_frame(message, WORKER_COMMAND, "\3") && message->count == WORKER_BODY + 1) {
        move(broker, &message->parts[CLIENT], ZMQ_SNDMORE);
        send_text(broker->router, "", ZMQ_SNDMORE);
        send_text(broker->router, "MDPC01", ZMQ_SNDMORE);
        send_text(broker->router, broker->service, ZMQ_SNDMORE);
        move(broker, &message->parts[WORKER_BODY], 0);
        worker_waits(broker);
    } else if (is_frame(message, WORKER_COMMAND, "\1")) {
        if (++broker->workers > MOST_WORKERS) fail("more than %d workers", MOST_WORKERS);
        frame_text(message, CLIENT, broker->service, sizeof broker->service);
        worker_waits(broker);
    } else if (is_frame(message, WORKER_COMMAND, "\5") && --broker->workers == 0) {
        broker->workers_out = broker->workers_in; /* all take leave together, when nothing is left to do */
    }
}

int main(int argument_count, char **arguments) {
    static struct broker broker;
    if (argument_count != 3) fail("usage: mdp_broker LIBZMQ ENDPOINT");
    load_zmq(arguments[1]);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    void *context = zmq.ctx_new();
    if (!(broker.router = zmq.socket(context, ZMQ_ROUTER))) fail_zmq("socket");
    set_option(broker.router, ZMQ_LINGER, 0);
    if (zmq.bind(broker.router, arguments[2])) fail_zmq(arguments[2]);
    init_message(&broker.message);
    for (int i = 0; i < MOST_REQUESTS; i++) {
        zmq.msg_init(&broker.requests[i].client);
        zmq.msg_init(&broker.requests[i].body);
    }
    for (int i = 0; i < MOST_WORKERS; i++) zmq.msg_init(&broker.waiting[i]);
    printf("ready\n");
    fflush(stdout);

    zmq_pollitem_t item = {.socket = broker.router, .events = ZMQ_POLLIN};
    while (!stopping) {
        if (zmq.poll(&item, 1, 500) < 0 && errno != EINTR) fail_zmq("poll");
        while (!stopping && receive_message(broker.router, &broker.message, ZMQ_DONTWAIT))
            if (is_frame(&broker.message, SIDE, "MDPC01")) from_client(&broker);
            else if (is_frame(&broker.message, SIDE, "MDPW01")) from_worker(&broker);
    }
    zmq.close(broker.router);
    zmq.ctx_term(context);
    return 0;
}
