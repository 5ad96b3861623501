/* The baseline of a download: a DEALER that keeps some requests open and writes what comes to a file.
 *
 *   music_client LIBZMQ ENDPOINT SONG SIZE CHUNK CREDIT TARGET
 *
 * It speaks as a client of a music server does (see music_server.c), asks for the chunks in order, writes each where it
 * belongs, and has the file safe on the disk at last. It neither checks a digest nor looks for other holders. Prints one
 * line of JSON: the seconds from the first request until all is safe, and its CPU seconds.
 */
#include <fcntl.h>
#include <unistd.h>

#include "music.h"

enum { HEADER, WORD, TAG, OFFSET, DATA, FRAMES };

static uint64_t size, chunk;

static uint64_t size_at(uint64_t offset) { return size - offset < chunk ? size - offset : chunk; }

static void ask(void *dealer, const char *song, uint64_t offset) {
    zmq_msg_t parts[6], *frames[6];
    for (int at = 0; at < 6; at++) frames[at] = &parts[at];
    make_frame(&parts[0], "ZMQ01", 5);
    make_frame(&parts[1], "fetch", 5);
    make_frame(&parts[2], "baseline", 8);
    make_frame(&parts[3], song, strlen(song));
    make_number(&parts[4], offset);
    make_number(&parts[5], size_at(offset));
    send_frames(dealer, frames, 6);
}

/* Wait for one answer; give its offset, and its bytes in the last of the frames. */
static uint64_t receive(void *dealer, zmq_msg_t *answer) {
    for (int at = 0; at < FRAMES; at++) {
        if (at && !zmq.msg_more(&answer[at - 1])) fail("an answer has too few frames");
        if (zmq.msg_recv(&answer[at], dealer, 0) < 0) fail_zmq("receive");
    }
    if (zmq.msg_more(&answer[DATA])) fail("an answer has too many frames");
    uint64_t offset = read_number(&answer[OFFSET]);
    if (offset >= size || zmq.msg_size(&answer[DATA]) != size_at(offset)) fail("an answer has a wrong size");
    return offset;
}

static void write_part(int file, zmq_msg_t *part, uint64_t offset) {
    uint64_t count = zmq.msg_size(part);
    for (uint64_t done = 0; done < count;) {
        ssize_t written = pwrite(file, (char *) zmq.msg_data(part) + done, count - done, (off_t) (offset + done));
        if (written <= 0) fail("the target cannot be written");
        done += (uint64_t) written;
    }
}

int main(int argument_count, char **arguments) {
    if (argument_count != 8) fail("usage: music_client LIBZMQ ENDPOINT SONG SIZE CHUNK CREDIT TARGET");
    load_zmq(arguments[1]);
    const char *song = arguments[3];
    size = strtoull(arguments[4], NULL, 10);
    chunk = strtoull(arguments[5], NULL, 10);
    uint64_t credit = strtoull(arguments[6], NULL, 10), asked = 0, received = 0;
    int file = open(arguments[7], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0) fail("%s: %s", arguments[7], strerror(errno));
    void *context = zmq.ctx_new(), *dealer = open_dealer(context, arguments[2]);
    set_option(dealer, ZMQ_RCVTIMEO, 20000);

    zmq_msg_t answer[FRAMES];
    for (int at = 0; at < FRAMES; at++) zmq.msg_init(&answer[at]);
    double start = seconds_of(CLOCK_MONOTONIC);
    for (; asked < size && credit; credit--, asked += size_at(asked)) ask(dealer, song, asked);
    while (received < size) {
        uint64_t offset = receive(dealer, answer);
        if (asked < size) {
            ask(dealer, song, asked);
            asked += size_at(asked);
        }
        write_part(file, &answer[DATA], offset);
        received += size_at(offset);
    }
    if (fsync(file)) fail("the target cannot be made safe: %s", strerror(errno));
    printf("{\"seconds\": %.6f, \"client_cpu_s\": %.6f}\n", seconds_of(CLOCK_MONOTONIC) - start,
           seconds_of(CLOCK_PROCESS_CPUTIME_ID));
    zmq.close(dealer);
    zmq.ctx_term(context);
    return 0;
}
