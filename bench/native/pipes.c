/* The load generator of zpipes: pairs of a writer and a reader, each a DEALER connection, and a pipe for each pair.
 *
 *   pipes --library LIBZMQ --endpoint ENDPOINT --count PAIRS --processes 1 --chunks 100000 --chunk-size 100 \
 *         --window 500 --name PREFIX --role both --time-limit 60 [--binary]
 *
 * Both ends open their pipe; one line of JSON says when all have done so, and until stdin is closed nothing more is
 * sent: so long they are idle clients. Then every pair moves its chunks, with a window of requests outstanding at each
 * end, and another line of JSON says how long that took. Every chunk is checked: that it is of this pipe and the next
 * in order, its length, and both its ends. With --role write nobody reads. --binary speaks zbroker's dialect.
 */
#include "crowd.h"

enum { HEAD_SIZE = 7, TIMEOUT_SIZE = 4, STAMP_SIZE = 16, TAIL_SIZE = 64, NAME_SIZE = 64, OPEN_SIZE = 4 + NAME_SIZE };
enum { OUTPUT = 4, OUTPUT_OK = 5, INPUT = 1, INPUT_OK = 2, READ = 7, READ_OK = 8, WRITE = 12, WRITE_OK = 13 };

struct settings {
    struct crowd_settings crowd;
    size_t chunks, chunk_size, window; /* for each pair */
    const char *name;
    int binary, reads;
};

struct stamp { uint64_t serial, pipe; };

struct pair {
    void *writer, *reader;
    char name[NAME_SIZE];
    unsigned char opening[OPEN_SIZE]; /* the binary dialect's OUTPUT or INPUT */
    unsigned char *buffers;           /* one for each WRITE outstanding */
    uint64_t number;
    size_t written, acknowledged, asked, read;
};

/* The pairs of one process. */
struct pairs {
    const struct settings *settings;
    int size;
    uint64_t first_number;
    void *context;
    struct pair *all;
    zmq_pollitem_t *items;
    unsigned char *pattern;          /* what a chunk is behind its stamp */
    unsigned char asking[HEAD_SIZE + TIMEOUT_SIZE];
    size_t buffer_size;
    zmq_msg_t answer;
    double deadline;
};

/* What a process tells: when its last chunk was acknowledged and read, and the CPU seconds it took. */
struct times { double acknowledged, read, cpu; };

static struct settings parse(int count, char **arguments) {
    struct settings settings = {.crowd = {.count = 1, .processes = 1, .time_limit = 60}, .chunks = 100000,
                                .chunk_size = 100, .window = 500, .name = "bench", .reads = 1};
    for (int i = 1; i < count; i += 2) {
        const char *name = arguments[i], *value = arguments[i + 1];
        if (!strcmp(name, "--binary")) { settings.binary = 1; i--; continue; }
        if (i + 1 == count) fail("%s needs a value", name);
        if (parse_crowd_option(&settings.crowd, name, value)) continue;
        if (!strcmp(name, "--chunks")) settings.chunks = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--chunk-size")) settings.chunk_size = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--window")) settings.window = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--name")) settings.name = value;
        else if (!strcmp(name, "--role")) settings.reads = strcmp(value, "write") != 0;
        else fail("unknown option %s", name);
    }
    check_crowd(&settings.crowd);
    if (!settings.chunks || !settings.window) fail("counts begin at 1");
    if (settings.chunk_size < STAMP_SIZE) fail("--chunk-size must be at least %d", STAMP_SIZE);
    if (strlen(settings.name) > NAME_SIZE - 16) fail("--name is too long");
    if (settings.binary && !settings.reads) fail("a writer of the binary dialect needs a reader");
    return settings;
}

/* --- frames ------------------------------------------------------------------------------------------------- */

static void no_free(void *data, void *hint) { (void) data; (void) hint; }

/* Send one frame. It is not copied: it must stay untouched until it is answered. */
static void send_frame(void *socket, const void *data, size_t size, int more) {
    zmq_msg_t message;
    if (zmq.msg_init_data(&message, (void *) data, size, no_free, NULL)) fail_zmq("msg_init_data");
    if (zmq.msg_send(&message, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0) fail_zmq("send");
}

/* Receive an answer of one frame; 0 when there is none. Every refusal of the text dialect has three. */
static int receive(struct pairs *pairs, void *socket, int flags) {
    if (zmq.msg_recv(&pairs->answer, socket, flags) < 0) {
        if (errno == EAGAIN) return 0;
        fail_zmq("receive");
    }
    if (zmq.msg_more(&pairs->answer)) {
        while (zmq.msg_more(&pairs->answer) && zmq.msg_recv(&pairs->answer, socket, 0) >= 0) continue;
        fail("a request was refused: %.*s", (int) zmq.msg_size(&pairs->answer), (char *) zmq.msg_data(&pairs->answer));
    }
    return 1;
}

static void put_number(unsigned char *place, size_t number) {
    for (int i = 0; i < 4; i++) place[i] = (unsigned char) (number >> (24 - 8 * i));
}

/* Write what a message of the binary dialect begins with. */
static void put_head(unsigned char *place, int kind, size_t number) {
    place[0] = 0xAA;
    place[1] = 0xA0;
    place[2] = (unsigned char) kind;
    put_number(place + 3, number);
}

static int is_kind(const unsigned char *data, size_t size, int kind) {
    return size >= 3 && data[0] == 0xAA && data[1] == 0xA0 && data[2] == kind;
}

/* Check an answer that carries nothing. */
static void check_done(struct pairs *pairs, int kind) {
    const unsigned char *data = zmq.msg_data(&pairs->answer);
    size_t size = zmq.msg_size(&pairs->answer);
    if (pairs->settings->binary ? size != 3 || !is_kind(data, size, kind) : size != 2 || memcmp(data, "OK", 2))
        fail("a request was answered by %zu other bytes than expected (the third is %d)", size, size > 2 ? data[2] : 0);
}

static void check_chunk(struct pairs *pairs, const struct pair *pair) {
    const unsigned char *data = zmq.msg_data(&pairs->answer);
    size_t size = zmq.msg_size(&pairs->answer), expected = pairs->settings->chunk_size;
    if (pairs->settings->binary) {
        if (size < HEAD_SIZE || !is_kind(data, size, READ_OK))
            fail("a READ was answered by message %d", size > 2 ? data[2] : 0);
        data += HEAD_SIZE;
        size -= HEAD_SIZE;
    }
    if (size != expected) fail("a chunk has %zu bytes, not %zu", size, expected);
    struct stamp stamp;
    memcpy(&stamp, data, sizeof stamp);
    if (stamp.pipe != pair->number) fail("a chunk is of another pipe");
    if (stamp.serial != pair->read + 1)
        fail("chunk %zu came as chunk %zu", (size_t) stamp.serial, pair->read + 1);
    size_t from = expected > STAMP_SIZE + TAIL_SIZE ? expected - TAIL_SIZE : STAMP_SIZE;
    if (memcmp(data + from, pairs->pattern + from, expected - from)) fail("a chunk has another end");
}

/* --- pairs -------------------------------------------------------------------------------------------------- */

static void write_next(struct pairs *pairs, struct pair *pair) {
    const struct settings *settings = pairs->settings;
    unsigned char *buffer = pair->buffers + pair->written % settings->window * pairs->buffer_size;
    struct stamp stamp = {.serial = ++pair->written, .pipe = pair->number};
    memcpy(buffer + HEAD_SIZE, &stamp, sizeof stamp);
    if (settings->binary) {
        send_frame(pair->writer, buffer, pairs->buffer_size, 0);
        return;
    }
    send_frame(pair->writer, "WRITE", 5, 1);
    send_frame(pair->writer, pair->name, strlen(pair->name), 1);
    send_frame(pair->writer, buffer + HEAD_SIZE, settings->chunk_size, 0);
}

static void ask_next(struct pairs *pairs, struct pair *pair) {
    pair->asked++;
    if (pairs->settings->binary) {
        send_frame(pair->reader, pairs->asking, sizeof pairs->asking, 0);
        return;
    }
    send_frame(pair->reader, "READ", 4, 1);
    send_frame(pair->reader, pair->name, strlen(pair->name), 0);
}

/* Take all answers that are there and keep both windows full; tells how many there were. */
static size_t serve(struct pairs *pairs, struct pair *pair) {
    size_t taken = 0, chunks = pairs->settings->chunks;
    for (; pair->acknowledged < pair->written && receive(pairs, pair->writer, ZMQ_DONTWAIT); taken++) {
        check_done(pairs, WRITE_OK); /* so it is at the broker, and its buffer free */
        pair->acknowledged++;
        if (pair->written < chunks) write_next(pairs, pair);
    }
    for (; pair->read < pair->asked && receive(pairs, pair->reader, ZMQ_DONTWAIT); taken++) {
        check_chunk(pairs, pair);
        pair->read++;
        if (pair->asked < chunks) ask_next(pairs, pair);
    }
    return taken;
}

static void check_time(const struct pairs *pairs, size_t acknowledged, size_t read) {
    if (seconds_of(CLOCK_MONOTONIC) > pairs->deadline)
        fail("not done in time: of %zu chunks %zu acknowledged, %zu read", pairs->settings->chunks * (size_t) pairs->size,
             acknowledged, read);
}

/* Move all chunks of all pairs. */
static struct times run(struct pairs *pairs) {
    const struct settings *settings = pairs->settings;
    size_t goal = settings->chunks * (size_t) pairs->size, acknowledged = 0, read = settings->reads ? 0 : goal;
    size_t window = settings->window < settings->chunks ? settings->window : settings->chunks;
    struct times times = {.cpu = -seconds_of(CLOCK_PROCESS_CPUTIME_ID)};
    for (struct pair *pair = pairs->all; pair < pairs->all + pairs->size; pair++)
        for (size_t i = 0; i < window; i++) {
            if (settings->reads) ask_next(pairs, pair);
            write_next(pairs, pair);
        }
    while (acknowledged < goal || read < goal) {
        size_t taken = 0, acknowledged_before = acknowledged;
        for (struct pair *pair = pairs->all; pair < pairs->all + pairs->size; pair++) {
            acknowledged -= pair->acknowledged;
            read -= pair->read;
            taken += serve(pairs, pair);
            acknowledged += pair->acknowledged;
            read += pair->read;
        }
        if (acknowledged == goal && acknowledged_before < goal) times.acknowledged = seconds_of(CLOCK_MONOTONIC);
        if (!taken) zmq.poll(pairs->items, (settings->reads ? 2 : 1) * pairs->size, 100);
        check_time(pairs, acknowledged, read);
    }
    times.read = seconds_of(CLOCK_MONOTONIC);
    times.cpu += seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    return times;
}

static void open_end(struct pairs *pairs, struct pair *pair, void *socket, int kind) {
    if (pairs->settings->binary) {
        put_head(pair->opening, kind, 0);
        size_t length = strlen(pair->name);
        pair->opening[3] = (unsigned char) length;
        memcpy(pair->opening + 4, pair->name, length);
        send_frame(socket, pair->opening, 4 + length, 0);
    } else {
        send_frame(socket, "OPEN", 4, 1);
        send_frame(socket, pair->name, strlen(pair->name), 0);
    }
}

static void await_open(struct pairs *pairs, void *socket, int kind) {
    while (!receive(pairs, socket, 0)) check_time(pairs, 0, 0);
    check_done(pairs, kind);
}

static void *connect_end(struct pairs *pairs, zmq_pollitem_t *item) {
    void *socket = open_dealer(pairs->context, pairs->settings->crowd.endpoint);
    set_option(socket, ZMQ_RCVTIMEO, 1000);
    *item = (zmq_pollitem_t) {.socket = socket, .events = ZMQ_POLLIN};
    return socket;
}

static void prepare(struct pairs *pairs, struct pair *pair, int index) {
    const struct settings *settings = pairs->settings;
    pair->number = pairs->first_number + (uint64_t) index;
    snprintf(pair->name, sizeof pair->name, "%s-%llu", settings->name, (unsigned long long) pair->number);
    pair->buffers = malloc(settings->window * pairs->buffer_size);
    if (!pair->buffers) fail("not enough memory");
    for (size_t slot = 0; slot < settings->window; slot++) {
        unsigned char *buffer = pair->buffers + slot * pairs->buffer_size;
        put_head(buffer, WRITE, settings->chunk_size);
        memcpy(buffer + HEAD_SIZE, pairs->pattern, settings->chunk_size);
        put_number(buffer + HEAD_SIZE + settings->chunk_size, 0);
    }
}

/* Connect both ends of some pairs and open their pipes: first all readers, then all writers. */
static void connect_some(void *state, int first, int count) {
    struct pairs *pairs = state;
    int reads = pairs->settings->reads;
    for (int i = first; i < first + count; i++) {
        struct pair *pair = &pairs->all[i];
        prepare(pairs, pair, i);
        pair->writer = connect_end(pairs, &pairs->items[i]);
        if (!reads) continue;
        pair->reader = connect_end(pairs, &pairs->items[pairs->size + i]);
        open_end(pairs, pair, pair->reader, INPUT);
    }
    for (int i = first; i < first + count; i++) {
        struct pair *pair = &pairs->all[i];
        if (reads) await_open(pairs, pair->reader, INPUT_OK);
        open_end(pairs, pair, pair->writer, OUTPUT);
    }
    for (int i = first; i < first + count; i++) await_open(pairs, pairs->all[i].writer, OUTPUT_OK);
}

/* One process of pairs: connect, tell the parent, be idle until it says so, move the chunks, report. */
static void be_pairs(const struct share *share) {
    const struct settings *settings = share->settings;
    struct share sockets = *share;
    sockets.size = 2 * share->size;
    struct pairs pairs = {.settings = settings, .size = share->size, .context = crowd_context(&sockets),
                          .first_number = (uint64_t) share->number * (uint64_t) settings->crowd.count,
                          .all = calloc((size_t) share->size, sizeof *pairs.all),
                          .items = calloc((size_t) share->size * 2, sizeof *pairs.items),
                          .pattern = malloc(settings->chunk_size),
                          .buffer_size = HEAD_SIZE + settings->chunk_size + TIMEOUT_SIZE, .deadline = share->deadline};
    if (!pairs.all || !pairs.items || !pairs.pattern) fail("not enough memory");
    for (size_t i = 0; i < settings->chunk_size; i++) pairs.pattern[i] = (unsigned char) (i * 31 + (i >> 8));
    put_head(pairs.asking, READ, settings->chunk_size);
    put_number(pairs.asking + HEAD_SIZE, 0);
    zmq.msg_init(&pairs.answer);
    connect_all(share, connect_some, &pairs);
    struct times times = {0};
    tell_parent(share, &times, sizeof times);
    while (!parent_ends(share, 1)) check_time(&pairs, 0, 0);
    times = run(&pairs);
    tell_parent(share, &times, sizeof times);
}

static struct times all;

static void add(const void *record) {
    const struct times *one = record;
    if (one->acknowledged > all.acknowledged) all.acknowledged = one->acknowledged;
    if (one->read > all.read) all.read = one->read;
    all.cpu += one->cpu;
}

int main(int argument_count, char **arguments) {
    struct settings settings = parse(argument_count, arguments);
    struct times one;
    struct crowd crowd = start_crowd(&settings.crowd, be_pairs, &settings);
    await_records(&crowd, &one, sizeof one, NULL, crowd.deadline);
    be_ready(&crowd, settings.crowd.count);
    double start = seconds_of(CLOCK_MONOTONIC);
    end_crowd(&crowd);
    await_records(&crowd, &one, sizeof one, add, crowd.deadline + 10);
    size_t chunks = settings.chunks * (size_t) settings.crowd.count;
    double seconds = all.read - start, write_seconds = all.acknowledged - start;
    printf("{\"chunks\": %zu, \"seconds\": %.6f, \"chunks_per_s\": %.1f, \"acknowledged_per_s\": %.1f, "
           "\"mb_per_s\": %.3f, \"load_cpu_s\": %.6f}\n",
           chunks, seconds, (double) chunks / seconds, (double) chunks / write_seconds,
           (double) chunks * (double) settings.chunk_size / seconds / 1e6, all.cpu);
    fflush(stdout);
    await_crowd();
    return 0;
}
