/* What one request looks like and what its reply must look like: shared by load.c and idle.c.
 *
 * A request is a list of fixed frames with one body among them. A body begins with a stamp (a serial number
 * and the buffer it lies in), so that a reply that is lost, doubled, mixed up or cut is noticed. A request may
 * have a frame @id as well: the serial number by itself, which then comes back in a frame of the reply. A frame
 * @service names one of --services services in turn, echo-0, echo-1 and so on, and comes back as well (--reply-service).
 */
#ifndef SCALE0_BENCH_REQUEST_H
#define SCALE0_BENCH_REQUEST_H

#include "zmq_dl.h"

enum { MAX_FRAMES = 16, STAMP_SIZE = 16, ID_SIZE = 8, TAIL_SIZE = 64, MAX_SERVICES = 1000, NAME_SIZE = 16 };

struct stamp { uint64_t serial; uint64_t slot; };

static const char *const ID_PLACE = "@id", *const SERVICE_PLACE = "@service";
static char service_names[MAX_SERVICES][NAME_SIZE];

struct request {
    const char *frames[MAX_FRAMES]; /* NULL is the body's place, ID_PLACE the id's */
    int frame_count;
    size_t body_size;
    int reply_frames; /* how many frames a reply has */
    int reply_body;   /* which of them is the body */
    int reply_id;     /* which of them is the id; 0 when none is: no reply begins with it */
    int reply_service; /* which of them is the service; 0 when none is */
    int services;      /* how many there are */
};

static void no_free(void *data, void *hint) { (void) data; (void) hint; }

/* Understand one argument that describes the request; 0 when it is about something else. */
static int parse_request_option(struct request *request, const char *name, const char *value) {
    if (!strcmp(name, "--frame")) {
        if (request->frame_count == MAX_FRAMES) fail("more than %d frames", MAX_FRAMES);
        const char *frame = !strcmp(value, ID_PLACE) ? ID_PLACE : !strcmp(value, SERVICE_PLACE) ? SERVICE_PLACE : value;
        request->frames[request->frame_count++] = strcmp(value, "@body") ? frame : NULL;
    } else if (!strcmp(name, "--body-size")) request->body_size = strtoul(value, NULL, 10);
    else if (!strcmp(name, "--reply-frames")) request->reply_frames = atoi(value);
    else if (!strcmp(name, "--reply-body")) request->reply_body = atoi(value);
    else if (!strcmp(name, "--reply-id")) request->reply_id = atoi(value);
    else if (!strcmp(name, "--reply-service")) request->reply_service = atoi(value);
    else if (!strcmp(name, "--services")) request->services = atoi(value);
    else return 0;
    return 1;
}

static void check_request(const struct request *request) {
    int bodies = 0;
    for (int i = 0; i < request->frame_count; i++) bodies += request->frames[i] == NULL;
    if (bodies != 1) fail("give exactly one --frame @body (and the fixed frames before and after it)");
    if (request->body_size < STAMP_SIZE) fail("--body-size must be at least %d", STAMP_SIZE);
    if (request->reply_body < 0 || request->reply_body >= request->reply_frames)
        fail("--reply-body must be a frame of the reply, counted from 0");
    if (request->reply_id < 0 || request->reply_id >= request->reply_frames)
        fail("--reply-id must be a frame of the reply, counted from 0");
    if (request->services < 0 || request->services > MAX_SERVICES) fail("--services must be at most %d", MAX_SERVICES);
    for (int i = 0; i < request->frame_count; i++)
        if (request->frames[i] == SERVICE_PLACE && !request->services) fail("@service needs --services");
    for (int i = 0; i < request->services; i++) snprintf(service_names[i], NAME_SIZE, "echo-%d", i);
}

/* Give the service that a request of this number is for. */
static const char *service_of(const struct request *request, uint64_t serial) {
    return service_names[serial % (uint64_t) request->services];
}

/* Fill a body with bytes that differ from place to place; the stamp comes when it is sent. */
static void fill_body(unsigned char *body, size_t size) {
    for (size_t i = 0; i < size; i++) body[i] = (unsigned char) (i * 31 + (i >> 8));
}

/* Send one request. The body is not copied: it must stay untouched until its reply has come. */
static void send_request(void *socket, const struct request *request, unsigned char *body,
                         struct stamp stamp) {
    memcpy(body, &stamp, sizeof stamp);
    for (int i = 0; i < request->frame_count; i++) {
        const char *fixed = request->frames[i];
        if (fixed == SERVICE_PLACE) fixed = service_of(request, stamp.serial);
        int is_id = fixed == ID_PLACE; /* the serial number is what the body begins with */
        void *data = fixed && !is_id ? (void *) fixed : body;
        size_t size = is_id ? ID_SIZE : fixed ? strlen(fixed) : request->body_size;
        zmq_msg_t message;
        if (zmq.msg_init_data(&message, data, size, no_free, NULL)) fail_zmq("msg_init_data");
        /* never blocks: the benches' clients have no high-water mark, the window bounds what is queued */
        int flags = ZMQ_DONTWAIT | (i + 1 < request->frame_count ? ZMQ_SNDMORE : 0);
        if (zmq.msg_send(&message, socket, flags) < 0) fail_zmq("send");
    }
}

/* Compare a body with the one sent from its buffer: the beginning and the end, which is cheap at any size. */
static void check_body(const struct request *request, const unsigned char *body, const unsigned char *sent) {
    size_t tail = request->body_size < TAIL_SIZE ? request->body_size : TAIL_SIZE;
    size_t from = request->body_size - tail;
    if (memcmp(body, sent, STAMP_SIZE) || memcmp(body + from, sent + from, tail))
        fail("a reply has another body");
}

/* Receive one reply and return its stamp through the argument; 0 when none has come (EAGAIN). */
static int receive_reply(void *socket, const struct request *request, unsigned char *bodies, size_t slots,
                         struct stamp *stamp, int flags) {
    zmq_msg_t message;
    int frame = 0, more = 1;
    uint64_t id = 0;
    char service[NAME_SIZE] = "";
    zmq.msg_init(&message);
    for (; more; frame++) {
        if (zmq.msg_recv(&message, socket, flags) < 0) {
            if (frame == 0 && errno == EAGAIN) { zmq.msg_close(&message); return 0; }
            fail_zmq("receive");
        }
        more = zmq.msg_more(&message);
        if (request->reply_id && frame == request->reply_id && zmq.msg_size(&message) == sizeof id)
            memcpy(&id, zmq.msg_data(&message), sizeof id);
        if (request->reply_service && frame == request->reply_service && zmq.msg_size(&message) < sizeof service)
            memcpy(service, zmq.msg_data(&message), zmq.msg_size(&message));
        if (frame != request->reply_body) continue;
        const unsigned char *body = zmq.msg_data(&message);
        if (zmq.msg_size(&message) != request->body_size)
            fail("a reply's body has %zu bytes, not %zu", zmq.msg_size(&message), request->body_size);
        memcpy(stamp, body, sizeof *stamp);
        if (stamp->slot >= slots) fail("a reply carries a body that was never sent");
        check_body(request, body, bodies + stamp->slot * request->body_size);
    }
    zmq.msg_close(&message);
    if (frame != request->reply_frames) fail("a reply has %d frames, not %d", frame, request->reply_frames);
    if (request->reply_id && id != stamp->serial) fail("a reply has another id");
    if (request->reply_service && strcmp(service, service_of(request, stamp->serial)))
        fail("a reply is from another service");
    return 1;
}

#endif
