/* The baseline of a music server: a ROUTER that reads the parts of one file that it is asked for, and nothing else.
 *
 *   music_server LIBZMQ ENDPOINT FILE
 *
 * [id, ZMQ01, fetch, tag, song, offset, size] is answered with [id, ZMQ01, data, tag, offset, bytes]; whatever the song
 * is called, it is the one file. Prints "ready address=ENDPOINT" when bound, with the port it got where that was left
 * open; ends on SIGTERM or SIGINT.
 */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "music.h"

enum { ID, HEADER, WORD, TAG, SONG, OFFSET, SIZE, FRAMES };

static volatile sig_atomic_t stopping;

static void stop(int signal_number) { (void) signal_number; stopping = 1; }

/* Receive one request; 0 when none is there. */
static int receive(void *router, zmq_msg_t *request) {
    if (zmq.msg_recv(&request[ID], router, ZMQ_DONTWAIT) < 0) return 0;
    for (int at = HEADER; at < FRAMES; at++) {
        if (!zmq.msg_more(&request[at - 1])) fail("a request has too few frames");
        if (zmq.msg_recv(&request[at], router, ZMQ_DONTWAIT) < 0) fail_zmq("receive");
    }
    if (zmq.msg_more(&request[SIZE])) fail("a request has too many frames");
    return 1;
}

/* Read straight into a message: its bytes are copied once, out of the file's cache. */
static void read_part(int file, uint64_t offset, uint64_t size, zmq_msg_t *part) {
    if (zmq.msg_init_size(part, size)) fail_zmq("message");
    for (uint64_t done = 0; done < size;) {
        ssize_t count = pread(file, (char *) zmq.msg_data(part) + done, size - done, (off_t) (offset + done));
        if (count <= 0) fail("the file cannot be read at %llu", (unsigned long long) (offset + done));
        done += (uint64_t) count;
    }
}

static void answer(void *router, zmq_msg_t *request, int file) {
    zmq_msg_t data, part;
    uint64_t offset = read_number(&request[OFFSET]), size = read_number(&request[SIZE]);
    make_frame(&data, "data", 4);
    read_part(file, offset, size, &part);
    zmq_msg_t *frames[] = {&request[ID], &request[HEADER], &data, &request[TAG], &request[OFFSET], &part};
    send_frames(router, frames, 6);
}

int main(int argument_count, char **arguments) {
    if (argument_count != 4) fail("usage: music_server LIBZMQ ENDPOINT FILE");
    load_zmq(arguments[1]);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    int file = open(arguments[3], O_RDONLY);
    if (file < 0) fail("%s: %s", arguments[3], strerror(errno));
    void *context = zmq.ctx_new(), *router = zmq.socket(context, ZMQ_ROUTER);
    if (!router) fail_zmq("socket");
    set_option(router, ZMQ_LINGER, 0);
    if (zmq.bind(router, arguments[2])) fail_zmq(arguments[2]);
    char bound[256];
    size_t length = sizeof bound;
    if (zmq.getsockopt(router, ZMQ_LAST_ENDPOINT, bound, &length)) fail_zmq("getsockopt");
    printf("ready address=%s\n", bound);
    fflush(stdout);

    zmq_msg_t request[FRAMES];
    for (int at = 0; at < FRAMES; at++) zmq.msg_init(&request[at]);
    zmq_pollitem_t item = {.socket = router, .events = ZMQ_POLLIN};
    while (!stopping) {
        /* a bounded wait: a signal between the test above and the poll would otherwise be slept over */
        if (zmq.poll(&item, 1, 500) < 0 && errno != EINTR) fail_zmq("poll");
        while (!stopping && receive(router, request)) answer(router, request, file);
    }
    zmq.close(router);
    zmq.ctx_term(context);
    return 0;
}
