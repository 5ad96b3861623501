/* The worker's side of the Scale0 protocol, as far as the benches need it: shared by worker.c, heartbeats.c and plain.c. */
#ifndef SCALE0_BENCH_DIALOG_H
#define SCALE0_BENCH_DIALOG_H

#include "zmq_dl.h"

enum { MOST_PARTS = 16 };
enum { HEADER, COMMAND, OPTIONS, BODY }; /* the places of a message's frames */

/* One message; its frames are used again for the next one. */
struct message { zmq_msg_t parts[MOST_PARTS]; int count; };

static void init_message(struct message *message) {
    for (int i = 0; i < MOST_PARTS; i++) zmq.msg_init(&message->parts[i]);
    message->count = 0;
}

/* Receive one message; 0 when none is there. */
static int receive_message(void *socket, struct message *message, int flags) {
    int more = 1;
    for (message->count = 0; more; message->count++) {
        if (message->count == MOST_PARTS) fail("a message has more than %d frames", MOST_PARTS);
        zmq_msg_t *part = &message->parts[message->count];
        if (zmq.msg_recv(part, socket, flags) < 0) {
            if (message->count == 0 && errno == EAGAIN) return 0;
            fail_zmq("receive");
        }
        more = zmq.msg_more(part);
    }
    if (message->count < 2) fail("a message has %d frames only", message->count);
    return 1;
}

static int is_frame(struct message *message, int place, const char *text) {
    size_t size = strlen(text);
    return place < message->count && zmq.msg_size(&message->parts[place]) == size
           && !memcmp(zmq.msg_data(&message->parts[place]), text, size);
}

__attribute__((unused)) static int is_command(struct message *message, const char *command) { return is_frame(message, COMMAND, command); }

/* Copy a frame's text, cut where there is no more room. */
static const char *frame_text(struct message *message, int place, char *text, size_t room) {
    size_t size = place < message->count ? zmq.msg_size(&message->parts[place]) : 0;
    if (size >= room) size = room - 1;
    if (size) memcpy(text, zmq.msg_data(&message->parts[place]), size);
    text[size] = 0;
    return text;
}

/* Send a text as a frame. */
static void send_text(void *socket, const char *text, int flags) {
    zmq_msg_t part;
    size_t size = strlen(text);
    if (zmq.msg_init_size(&part, size)) fail_zmq("msg_init_size");
    memcpy(zmq.msg_data(&part), text, size);
    if (zmq.msg_send(&part, socket, ZMQ_DONTWAIT | flags) < 0) fail_zmq("send");
}

/* Send a command of a worker. */
__attribute__((unused)) static void send_command(void *socket, const char *command, const char *options) {
    send_text(socket, "S0W01", ZMQ_SNDMORE);
    send_text(socket, command, ZMQ_SNDMORE);
    send_text(socket, options, 0);
}

/* Wait for one of two answers; heartbeats may come in between. */
__attribute__((unused)) static void await_answer(void *socket, struct message *message, const char *one, const char *other,
                         double deadline) {
    char command[64], options[256];
    for (;;) {
        while (!receive_message(socket, message, 0))
            if (seconds_of(CLOCK_MONOTONIC) > deadline) fail("no %s came before the time was up", one);
        if (is_command(message, one) || is_command(message, other)) return;
        if (!is_command(message, "HEARTBEAT"))
            fail("%s %s instead of %s", frame_text(message, COMMAND, command, sizeof command),
                 frame_text(message, OPTIONS, options, sizeof options), one);
    }
}

/* Connect some workers and negotiate: CHECKCONFIG, READY. Gives the configuration's version. */
__attribute__((unused)) static int connect_workers(void *context, const char *endpoint, void **sockets, int count, int first,
                           const char *name, const char *service, int window, double deadline) {
    char text[512];
    int version = 0;
    struct message message;
    init_message(&message);
    for (int i = 0; i < count; i++) {
        sockets[i] = open_dealer(context, endpoint);
        set_option(sockets[i], ZMQ_RCVTIMEO, 1000);
        snprintf(text, sizeof text, "{\"identity\":\"%s-%d\",\"services\":[\"%s\"]}", name, first + i, service);
        send_command(sockets[i], "CHECKCONFIG", text);
    }
    for (int i = 0; i < count; i++) {
        await_answer(sockets[i], &message, "CONFIGACK", "CONFIG", deadline);
        snprintf(text, sizeof text, "{\"services\":[\"%s\"],\"window\":%d}", service, window);
        send_command(sockets[i], "READY", text);
    }
    for (int i = 0; i < count; i++) {
        await_answer(sockets[i], &message, "READYOK", "READYOK", deadline);
        const char *found = strstr(frame_text(&message, OPTIONS, text, sizeof text), "\"config_version\":");
        if (found) version = atoi(strchr(found, ':') + 1);
    }
    return version;
}

#endif
