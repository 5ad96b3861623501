/* The baseline in C: what libzmq alone costs. A ROUTER that answers [id, ..., body] with [id, body].
 *
 *   server LIBZMQ ENDPOINT
 *
 * Prints "ready" when bound; ends on SIGTERM or SIGINT.
 */
#include <signal.h>

#include "zmq_dl.h"

static volatile sig_atomic_t stopping;

static void stop(int signal_number) { (void) signal_number; stopping = 1; }

/* Receive one message into id and (the last frame) body; 0 when none is there. */
static int receive(void *router, zmq_msg_t *id, zmq_msg_t *body) {
    if (zmq.msg_recv(id, router, ZMQ_DONTWAIT) < 0) return 0;
    do
        if (zmq.msg_recv(body, router, ZMQ_DONTWAIT) < 0) fail_zmq("receive");
    while (zmq.msg_more(body));
    return 1;
}

int main(int argument_count, char **arguments) {
    if (argument_count != 3) fail("usage: server LIBZMQ ENDPOINT");
    load_zmq(arguments[1]);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    void *context = zmq.ctx_new(), *router = zmq.socket(context, ZMQ_ROUTER);
    if (!router) fail_zmq("socket");
    set_option(router, ZMQ_LINGER, 0);
    if (zmq.bind(router, arguments[2])) fail_zmq(arguments[2]);
    printf("ready\n");
    fflush(stdout);

    zmq_msg_t id, body;
    zmq.msg_init(&id);
    zmq.msg_init(&body);
    zmq_pollitem_t item = {.socket = router, .events = ZMQ_POLLIN};
    while (!stopping) {
        /* a bounded wait: a signal between the test above and the poll would otherwise be slept over */
        if (zmq.poll(&item, 1, 500) < 0 && errno != EINTR) fail_zmq("poll");
        while (!stopping && receive(router, &id, &body)) {
            /* sending moves the content and leaves the message empty: nothing is copied */
            if (zmq.msg_send(&id, router, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) fail_zmq("send of the id");
            if (zmq.msg_send(&body, router, ZMQ_DONTWAIT) < 0) fail_zmq("send of the body");
        }
    }
    zmq.close(router);
    zmq.ctx_term(context);
    return 0;
}
