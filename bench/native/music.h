/* What the C programs of the music bench share: numbers of eight bytes, and messages of several frames. */
#ifndef SCALE0_BENCH_MUSIC_H
#define SCALE0_BENCH_MUSIC_H

#include "zmq_dl.h"

/* Read an offset or a size. */
static uint64_t read_number(zmq_msg_t *frame) {
    uint64_t value = 0;
    if (zmq.msg_size(frame) != 8) fail("a number has eight bytes");
    const unsigned char *bytes = zmq.msg_data(frame);
    for (int at = 0; at < 8; at++) value = value << 8 | bytes[at];
    return value;
}

/* Make a frame of some bytes. */
static void make_frame(zmq_msg_t *frame, const void *bytes, size_t size) {
    if (zmq.msg_init_size(frame, size)) fail_zmq("message");
    memcpy(zmq.msg_data(frame), bytes, size);
}

/* Make a frame of an offset or a size. */
__attribute__((unused)) static void make_number(zmq_msg_t *frame, uint64_t value) {
    unsigned char bytes[8];
    for (int at = 7; at >= 0; at--, value >>= 8) bytes[at] = (unsigned char) value;
    make_frame(frame, bytes, sizeof bytes);
}

/* Send frames as one message; sending moves their content and leaves them empty. */
static void send_frames(void *socket, zmq_msg_t **frames, int count) {
    for (int at = 0; at < count; at++)
        if (zmq.msg_send(frames[at], socket, at + 1 < count ? ZMQ_SNDMORE : 0) < 0) fail_zmq("send");
}

#endif
