/* The native wire: whole batches of messages between ZeroMQ and Python in one call.

   The functions of libzmq are taken from the copy that pyzmq has already loaded (load_library), never linked: so there
   is only one libzmq in the process, and this builds on a machine without its headers. Everything here is called by one
   thread, the loop's; only Poller.wait and Poller.rush release the GIL, and only while they sleep. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/epoll.h>
#endif

/* The part of zmq.h that is used; all of it is stable since libzmq 3.2. */
typedef struct { _Alignas(void *) unsigned char opaque[64]; } zmq_msg_t;
enum { ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2, ZMQ_POLLIN = 1, ZMQ_FD = 14, ZMQ_EVENTS = 15, EFSM = 156384763 };

static struct {
    int (*msg_init)(zmq_msg_t *);
    int (*msg_recv)(zmq_msg_t *, void *, int);
    int (*msg_send)(zmq_msg_t *, void *, int);
    int (*msg_copy)(zmq_msg_t *, zmq_msg_t *);
    int (*msg_move)(zmq_msg_t *, zmq_msg_t *);
    int (*msg_close)(zmq_msg_t *);
    int (*msg_more)(const zmq_msg_t *);
    void *(*msg_data)(zmq_msg_t *);
    size_t (*msg_size)(const zmq_msg_t *);
    int (*send)(void *, const void *, size_t, int);
    int (*getsockopt)(void *, int, void *, size_t *);
    int (*last_errno)(void);
    const char *(*strerror)(int);
} zmq;

/* ------------------------------------------------------------------ Blob: a received frame that is not copied */

typedef struct {
    PyObject_HEAD
    zmq_msg_t msg;
} Blob;

static PyTypeObject BlobType;

static void Blob_dealloc(Blob *self)
{
    zmq.msg_close(&self->msg);
    Py_TYPE(self)->tp_free((PyObject *) self);
}

static int Blob_getbuffer(Blob *self, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *) self, zmq.msg_data(&self->msg),
                             (Py_ssize_t) zmq.msg_size(&self->msg), 1, flags);
}

static Py_ssize_t Blob_length(Blob *self) { return (Py_ssize_t) zmq.msg_size(&self->msg); }

static PyObject *Blob_repr(Blob *self) { return PyUnicode_FromFormat("<Blob of %zd bytes>", Blob_length(self)); }

static PyBufferProcs Blob_as_buffer = {.bf_getbuffer = (getbufferproc) Blob_getbuffer};
static PySequenceMethods Blob_as_sequence = {.sq_length = (lenfunc) Blob_length};

static PyTypeObject BlobType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "scale0_core.io._wire.Blob",
    .tp_doc = "A large received frame, kept where libzmq put it; len(), bytes() and memoryview() take it.",
    .tp_basicsize = sizeof(Blob),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor) Blob_dealloc,
    .tp_repr = (reprfunc) Blob_repr,
    .tp_as_buffer = &Blob_as_buffer,
    .tp_as_sequence = &Blob_as_sequence,
};

/* ------------------------------------------------------------------ errors */

static PyObject *raise_zmq_error(void)
{
    int code = zmq.last_errno();
    PyObject *arguments = Py_BuildValue("(is)", code, zmq.strerror(code));
    if (arguments)
        PyErr_SetObject(PyExc_OSError, arguments);
    Py_XDECREF(arguments);
    return NULL;
}

/* ------------------------------------------------------------------ Port: one socket */

/* Routing ids, headers and commands are short and come again and again in the same place: the object made for the last
   message serves for the next. */
enum { REMEMBERED_FRAMES = 4, REMEMBERED_SIZE = 16 };

/* What is known of the messages that wait in a socket. Its descriptor tells of news only once, and to whichever call of
   libzmq comes first: after a send it says nothing about what came before, so the socket itself has to be asked. A recv
   that found nothing has seen all news; what comes later is told by the descriptor. */
enum knowledge { ASK, EMPTY, WAITING };

typedef struct {
    PyObject_HEAD
    void *socket;
    Py_ssize_t blob_over;
    Py_ssize_t least_frames; /* a message of fewer is malformed: a ROUTER drops a lone routing id without a word */
    PyObject *owner;         /* the zmq.Socket, kept alive as long as the port */
    PyObject *remembered[REMEMBERED_FRAMES];
    Py_ssize_t most_frames; /* a message of more is taken out of the socket and dropped */
    Py_ssize_t dropped;
    Py_ssize_t incomplete; /* of the dropped, those whose last frames never came */
    int fd;
    enum knowledge inbox;
} Port;

static PyTypeObject PortType;

static int Port_init(Port *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"owner", "blob_over", "least_frames", "most_frames", NULL};
    PyObject *owner, *blob_over = Py_None, *underlying, *old;
    Py_ssize_t limit = PY_SSIZE_T_MAX, least_frames = 1, most_frames = PY_SSIZE_T_MAX;
    void *socket;
    int fd;
    size_t fd_size = sizeof fd;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|Onn", names, &owner, &blob_over, &least_frames,
                                     &most_frames))
        return -1;
    if (!zmq.msg_recv) {
        PyErr_SetString(PyExc_RuntimeError, "load_library() comes first");
        return -1;
    }
    if (blob_over != Py_None && (limit = PyLong_AsSsize_t(blob_over)) == -1 && PyErr_Occurred())
        return -1;
    if (!(underlying = PyObject_GetAttrString(owner, "underlying")))
        return -1;
    socket = PyLong_AsVoidPtr(underlying);
    Py_DECREF(underlying);
    if (!socket) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the socket is closed");
        return -1;
    }
    if (zmq.getsockopt(socket, ZMQ_FD, &fd, &fd_size) < 0) {
        raise_zmq_error();
        return -1;
    }
    self->socket = socket;
    self->fd = fd;
    self->inbox = ASK;
    self->blob_over = limit;
    self->least_frames = least_frames;
    self->most_frames = most_frames;
    old = self->owner;
    self->owner = Py_NewRef(owner);
    Py_XDECREF(old);
    return 0;
}

static void Port_dealloc(Port *self)
{
    int i;
    for (i = 0; i < REMEMBERED_FRAMES; i++)
        Py_XDECREF(self->remembered[i]);
    Py_XDECREF(self->owner);
    Py_TYPE(self)->tp_free((PyObject *) self);
}

static PyObject *Port_close(Port *self, PyObject *Py_UNUSED(ignored))
{
    self->socket = NULL;
    Py_CLEAR(self->owner);
    Py_RETURN_NONE;
}

static int port_is_open(Port *self)
{
    if (self->socket)
        return 1;
    PyErr_SetString(PyExc_ValueError, "the port is closed");
    return 0;
}

/* Turn a received frame into bytes, or into a Blob that takes the message over. */
static PyObject *frame_object(Port *self, Py_ssize_t index, zmq_msg_t *msg, Py_ssize_t size)
{
    Blob *blob;
    if (size <= REMEMBERED_SIZE && index < REMEMBERED_FRAMES && size <= self->blob_over) {
        const char *data = zmq.msg_data(msg);
        PyObject *frame = self->remembered[index];
        if (!frame || PyBytes_GET_SIZE(frame) != size || memcmp(PyBytes_AS_STRING(frame), data, (size_t) size) != 0) {
            if (!(frame = PyBytes_FromStringAndSize(data, size)))
                return NULL;
            Py_XSETREF(self->remembered[index], frame);
        }
        return Py_NewRef(frame);
    }
    if (size <= self->blob_over)
        return PyBytes_FromStringAndSize(zmq.msg_data(msg), size);
    if (!(blob = PyObject_New(Blob, &BlobType)))
        return NULL;
    zmq.msg_init(&blob->msg);
    zmq.msg_move(&blob->msg, msg);
    return (PyObject *) blob;
}

enum { FRAMES_ON_STACK = 16 };

/* A drain ends when it has taken so many bytes: large bodies are then sent on while they are still in the cache, and a
   socket full of them does not hold up the others. */
enum { BYTES_PER_DRAIN = 256 * 1024 };

/* Take the next frame of a message; 0 when there is none, though the last one said so, and -1 with an exception.
   libzmq 4.3.5 gives half a message on an XPUB socket when a peer sends a known subscription as a second frame. */
static int next_frame(Port *self, zmq_msg_t *msg)
{
    while (zmq.msg_recv(msg, self->socket, ZMQ_DONTWAIT) < 0) {
        int code = zmq.last_errno();
        if (code == EINTR)
            continue;
        if (code != EAGAIN) {
            raise_zmq_error();
            return -1;
        }
        self->incomplete++;
        return 0;
    }
    return 1;
}

/* Take the frames of a message that is too long out of the socket, without making objects of them. */
static int discard_rest(Port *self, zmq_msg_t *msg)
{
    int outcome = 1;
    while (outcome > 0 && zmq.msg_more(msg))
        outcome = next_frame(self, msg);
    return outcome < 0 ? -1 : 0;
}

/* The rest of a message whose first frame is in msg, or None when it was dropped. A failure leaves the remaining frames
   in the socket, so it is only for lack of memory or of the socket itself, where nothing can be saved anyway. */
static PyObject *message_tuple(Port *self, zmq_msg_t *msg, size_t *bytes)
{
    PyObject *stack[FRAMES_ON_STACK], *tuple, *overflow = NULL;
    Py_ssize_t count = 0, i;
    for (;;) {
        int more = zmq.msg_more(msg), outcome;
        PyObject *frame;
        Py_ssize_t size = (Py_ssize_t) zmq.msg_size(msg);
        *bytes += (size_t) size;
        if (count >= self->most_frames || (overflow && count + PyList_GET_SIZE(overflow) >= self->most_frames)) {
            if (discard_rest(self, msg) < 0)
                goto failed;
            goto dropped;
        }
        frame = frame_object(self, count, msg, size);
        if (!frame)
            goto failed;
        if (count < FRAMES_ON_STACK) {
            stack[count++] = frame;
        }
        else {
            int bad = (!overflow && !(overflow = PyList_New(0))) || PyList_Append(overflow, frame);
            Py_DECREF(frame);
            if (bad)
                goto failed;
        }
        if (!more)
            break;
        if ((outcome = next_frame(self, msg)) < 0)
            goto failed;
        if (!outcome)
            goto dropped;
    }
    if (!(tuple = PyTuple_New(count + (overflow ? PyList_GET_SIZE(overflow) : 0))))
        goto failed;
    for (i = 0; i < count; i++)
        PyTuple_SET_ITEM(tuple, i, stack[i]);
    for (; i < PyTuple_GET_SIZE(tuple); i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(PyList_GET_ITEM(overflow, i - count)));
    Py_XDECREF(overflow);
    return tuple;

dropped:
    self->dropped++;
    tuple = Py_NewRef(Py_None);
    goto done;
failed:
    tuple = NULL;
done:
    while (count)
        Py_DECREF(stack[--count]);
    Py_XDECREF(overflow);
    return tuple;
}

/* Take at most so many messages, without waiting. */
static PyObject *drain(Port *self, Py_ssize_t limit)
{
    PyObject *messages;
    size_t bytes = 0;
    zmq_msg_t msg;
    if (!(messages = PyList_New(0)))
        return NULL;
    zmq.msg_init(&msg);
    self->inbox = WAITING;
    while (limit-- > 0 && bytes < BYTES_PER_DRAIN) {
        PyObject *message;
        int bad;
        if (zmq.msg_recv(&msg, self->socket, ZMQ_DONTWAIT) < 0) {
            int code = zmq.last_errno();
            if (code == EINTR)
                continue;
            /* EFSM: it is a REQ or REP socket's turn to send. The messages already taken are worth more than an error
               that will come again. */
            if (code != EAGAIN && code != EFSM && PyList_GET_SIZE(messages) == 0) {
                self->inbox = ASK;
                raise_zmq_error();
                goto failed;
            }
            self->inbox = EMPTY;
            break;
        }
        if (!(message = message_tuple(self, &msg, &bytes))) {
            self->inbox = ASK;
            if (PyList_GET_SIZE(messages) == 0)
                goto failed;
            PyErr_Clear(); /* it will come again */
            break;
        }
        bad = message != Py_None && PyList_Append(messages, message);
        Py_DECREF(message);
        if (bad)
            goto failed;
    }
    zmq.msg_close(&msg);
    return messages;

failed:
    zmq.msg_close(&msg);
    Py_DECREF(messages);
    return NULL;
}

static PyObject *Port_drain(Port *self, PyObject *argument)
{
    Py_ssize_t limit = PyLong_AsSsize_t(argument);
    if ((limit == -1 && PyErr_Occurred()) || !port_is_open(self))
        return NULL;
    return drain(self, limit);
}

static PyMethodDef Port_methods[] = {
    {"drain", (PyCFunction) Port_drain, METH_O, "drain(limit): take at most so many messages, without waiting."},
    {"close", (PyCFunction) Port_close, METH_NOARGS, "Let go of the socket; call it before the socket is closed."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Port_members[] = {
    {"dropped", T_PYSSIZET, offsetof(Port, dropped), 0, "Messages that were dropped."},
    {"incomplete", T_PYSSIZET, offsetof(Port, incomplete), 0, "Messages that were dropped since their end never came."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject PortType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "scale0_core.io._wire.Port",
    .tp_doc = "Port(socket, blob_over=None, least_frames=1, most_frames=...): one open zmq.Socket, drained and sent to in batches.",
    .tp_basicsize = sizeof(Port),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc) Port_init,
    .tp_dealloc = (destructor) Port_dealloc,
    .tp_methods = Port_methods,
    .tp_members = Port_members,
};

/* ------------------------------------------------------------------ sending */

/* A view that is strided, or released, is found out before the first frame of its message has gone. */
static int frame_is_sendable(PyObject *frame)
{
    Py_buffer view;
    if (PyBytes_Check(frame) || Py_IS_TYPE(frame, &BlobType))
        return 1;
    if (PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE) < 0)
        return 0;
    PyBuffer_Release(&view);
    return 1;
}

/* Look at a whole send before its first frame goes out: half a message cannot be taken back. */
static Port *check_send(PyObject *ports, PyObject *send, PyObject **frames)
{
    PyObject *port;
    Py_ssize_t i;
    if (!PyTuple_Check(send) || PyTuple_GET_SIZE(send) != 2 || !PyUnicode_Check(PyTuple_GET_ITEM(send, 0)))
        return NULL;
    port = PyDict_GetItemWithError(ports, PyTuple_GET_ITEM(send, 0));
    *frames = PyTuple_GET_ITEM(send, 1);
    if (!port || !PyObject_TypeCheck(port, &PortType) || !PyTuple_Check(*frames)
        || PyTuple_GET_SIZE(*frames) < ((Port *) port)->least_frames)
        return NULL;
    for (i = 0; i < PyTuple_GET_SIZE(*frames); i++)
        if (!frame_is_sendable(PyTuple_GET_ITEM(*frames, i)))
            return NULL;
    return (Port *) port;
}

/* Send one frame; -1 with libzmq's errno. */
static int send_frame(void *socket, PyObject *frame, int flags)
{
    int result;
    if (PyBytes_Check(frame)) {
        do
            result = zmq.send(socket, PyBytes_AS_STRING(frame), (size_t) PyBytes_GET_SIZE(frame), flags);
        while (result < 0 && zmq.last_errno() == EINTR);
    }
    else if (Py_IS_TYPE(frame, &BlobType)) {
        zmq_msg_t copy; /* shares the data; the blob stays usable */
        zmq.msg_init(&copy);
        zmq.msg_copy(&copy, &((Blob *) frame)->msg);
        do
            result = zmq.msg_send(&copy, socket, flags);
        while (result < 0 && zmq.last_errno() == EINTR);
        if (result < 0) {
            int code = zmq.last_errno();
            zmq.msg_close(&copy);
            errno = code;
        }
    }
    else {
        Py_buffer view;
        if (PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE) < 0) {
            PyErr_Clear(); /* it was fine a moment ago: an object that changes its mind sends an empty frame */
            return zmq.send(socket, "", 0, flags) < 0 ? -1 : 0;
        }
        do
            result = zmq.send(socket, view.buf, (size_t) view.len, flags);
        while (result < 0 && zmq.last_errno() == EINTR);
        {
            int code = errno;
            PyBuffer_Release(&view);
            errno = code;
        }
    }
    return result < 0 ? -1 : 0;
}

/* Failures that are not libzmq's; its own numbers are positive. */
enum { MALFORMED = -1, CLOSED = -2 };

static int note_failure(PyObject *failures, Py_ssize_t index, int code)
{
    PyObject *entry = Py_BuildValue("(ni)", index, code);
    int bad = !entry || PyList_Append(failures, entry);
    Py_XDECREF(entry);
    return bad ? -1 : 0;
}

/* Peers that could not be reached in this batch, as {(port, routing id): errno}: what follows for them is not tried, or
   it might overtake what has failed. Sockets other than ROUTERs have one peer, so to speak. */
static PyObject *peer_key(Port *port, PyObject *frames)
{
    PyObject *peer = port->least_frames == 2 ? PyBytes_FromObject(PyTuple_GET_ITEM(frames, 0)) : Py_NewRef(Py_None);
    PyObject *key = peer ? PyTuple_Pack(2, (PyObject *) port, peer) : NULL;
    Py_XDECREF(peer);
    return key;
}

/* The errno with which an earlier send to the same peer has failed; 0 when none has, -1 with an exception. */
static int earlier_failure(PyObject *unreached, Port *port, PyObject *frames)
{
    PyObject *key, *code;
    if (!unreached)
        return 0;
    if (!(key = peer_key(port, frames)))
        return -1;
    code = PyDict_GetItemWithError(unreached, key);
    Py_DECREF(key);
    return code ? (int) PyLong_AsLong(code) : PyErr_Occurred() ? -1 : 0;
}

static int note_unreached(PyObject **unreached, Port *port, PyObject *frames, int code)
{
    PyObject *key, *number;
    int bad;
    if (!*unreached && !(*unreached = PyDict_New()))
        return -1;
    key = peer_key(port, frames);
    number = PyLong_FromLong(code);
    bad = !key || !number || PyDict_SetItem(*unreached, key, number);
    Py_XDECREF(key);
    Py_XDECREF(number);
    return bad ? -1 : 0;
}

/* Send a list of (port name, frames); [(index, errno), ...] of those that failed. */
static PyObject *send_all(PyObject *ports, PyObject *sends)
{
    PyObject *failures, *frames = NULL, *unreached = NULL;
    Py_ssize_t index, i, last;
    if (!(failures = PyList_New(0)))
        return NULL;
    for (index = 0; index < PyList_GET_SIZE(sends); index++) {
        PyObject *send = Py_NewRef(PyList_GET_ITEM(sends, index)); /* looking at a buffer may run Python code */
        Port *port = check_send(ports, send, &frames);
        int code = !port ? MALFORMED : !port->socket ? CLOSED : 0;
        PyErr_Clear();
        if (!code && (code = earlier_failure(unreached, port, frames)) < 0) {
            Py_DECREF(send);
            goto failed;
        }
        last = code ? -1 : PyTuple_GET_SIZE(frames) - 1;
        if (!code && port->inbox == EMPTY)
            port->inbox = ASK;
        for (i = 0; i <= last; i++) {
            int flags = ZMQ_DONTWAIT | (i < last ? ZMQ_SNDMORE : 0);
            if (send_frame(port->socket, PyTuple_GET_ITEM(frames, i), flags) == 0 || code)
                continue;
            code = zmq.last_errno();
            /* nothing has gone yet; later on, libzmq drops all up to the last frame, so that has to be sent as well */
            if (i == 0)
                break;
        }
        if ((code > 0 && note_unreached(&unreached, port, frames, code)) || (code && note_failure(failures, index, code))) {
            Py_DECREF(send);
            goto failed;
        }
        Py_DECREF(send);
    }
    Py_XDECREF(unreached);
    return failures;

failed:
    Py_XDECREF(unreached);
    Py_DECREF(failures);
    return NULL;
}

static PyObject *wire_send(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *ports, *sends;
    if (!PyArg_ParseTuple(args, "O!O!", &PyDict_Type, &ports, &PyList_Type, &sends))
        return NULL;
    return send_all(ports, sends);
}

/* ------------------------------------------------------------------ Poller */

/* zmq_poll asks every socket at every call, at the price of a system call each. Here one call watches them all, and only
   those are asked that have news or of which nothing is known. Where there is epoll, which need not be told every time
   what to watch, that call is epoll_wait, else poll. */
typedef struct {
    PyObject_HEAD
    PyObject *ports;     /* tuple */
    struct pollfd *news; /* the ports', and last the descriptor's */
    int count;
#ifdef __linux__
    int epoll; /* -1 when poll has to do */
    struct epoll_event *events;
#endif
} Poller;

#ifdef __linux__

static void stop_watching(Poller *self)
{
    if (self->epoll >= 0)
        close(self->epoll);
    self->epoll = -1;
    PyMem_Free(self->events);
    self->events = NULL;
}

/* What epoll does not take, a file for example, is left to poll with all the rest. */
static void watch(Poller *self)
{
    int i;
    self->events = PyMem_Calloc((size_t) self->count, sizeof *self->events);
    self->epoll = self->events ? epoll_create1(EPOLL_CLOEXEC) : -1;
    for (i = 0; self->epoll >= 0 && i < self->count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = (uint32_t) i}};
        if (epoll_ctl(self->epoll, EPOLL_CTL_ADD, self->news[i].fd, &event) < 0)
            stop_watching(self);
    }
}

static int await_news(Poller *self, int timeout)
{
    int i, found;
    if (self->epoll < 0)
        return poll(self->news, (nfds_t) self->count, timeout);
    found = epoll_wait(self->epoll, self->events, self->count, timeout);
    for (i = 0; i < self->count; i++)
        self->news[i].revents = 0;
    for (i = 0; i < found; i++)
        self->news[self->events[i].data.u32].revents = POLLIN;
    return found;
}

#else

static void stop_watching(Poller *self) { (void) self; }

static void watch(Poller *self) { (void) self; }

static int await_news(Poller *self, int timeout) { return poll(self->news, (nfds_t) self->count, timeout); }

#endif

static PyObject *Poller_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Poller *self = (Poller *) type->tp_alloc(type, 0);
#ifdef __linux__
    if (self)
        self->epoll = -1;
#endif
    return (PyObject *) self;
}

static int Poller_init(Poller *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *ports;
    struct pollfd *news;
    Py_ssize_t count, i;
    int fd;
    if (!PyArg_ParseTuple(args, "O!i", &PyTuple_Type, &ports, &fd))
        return -1;
    count = PyTuple_GET_SIZE(ports);
    if (!(news = PyMem_Calloc((size_t) count + 1, sizeof *news))) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < count; i++) {
        PyObject *port = PyTuple_GET_ITEM(ports, i);
        if (!PyObject_TypeCheck(port, &PortType) || !port_is_open((Port *) port)) {
            PyMem_Free(news);
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "a poller takes ports");
            return -1;
        }
        ((Port *) port)->inbox = ASK; /* while nobody polled, anybody may have used the socket */
        news[i].fd = ((Port *) port)->fd;
        news[i].events = POLLIN;
    }
    news[count].fd = fd;
    news[count].events = POLLIN;
    stop_watching(self);
    PyMem_Free(self->news);
    self->news = news;
    self->count = (int) count + 1;
    watch(self);
    Py_XSETREF(self->ports, Py_NewRef(ports));
    return 0;
}

static void Poller_dealloc(Poller *self)
{
    stop_watching(self);
    PyMem_Free(self->news);
    Py_XDECREF(self->ports);
    Py_TYPE(self)->tp_free((PyObject *) self);
}

static Port *poller_port(Poller *self, int i) { return (Port *) PyTuple_GET_ITEM(self->ports, i); }

/* Ask a socket whether messages wait in it. One that cannot say is taken to have some: its own drain then meets the
   error, and the other sockets are none the worse. */
static void ask(Port *port)
{
    int events, failed;
    size_t size = sizeof events;
    while ((failed = zmq.getsockopt(port->socket, ZMQ_EVENTS, &events, &size) < 0) && zmq.last_errno() == EINTR)
        ;
    port->inbox = failed || events & ZMQ_POLLIN ? WAITING : EMPTY;
}

/* Look once, waiting at most so many milliseconds: the number of ports and descriptors with something to read, or -1
   with an errno. One port may be taken to have messages when it has any news. */
static int look(Poller *self, int timeout, Port *busy)
{
    int i, found = 0, signalled;
    for (i = 0; i < self->count - 1; i++) {
        Port *port = poller_port(self, i);
        if (port->inbox == ASK)
            ask(port);
        found += port->inbox == WAITING;
    }
    if ((signalled = await_news(self, found ? 0 : timeout)) < 0)
        return -1;
    for (i = 0; signalled && i < self->count - 1; i++) {
        Port *port = poller_port(self, i);
        if (!self->news[i].revents || port->inbox == WAITING)
            continue;
        if (port == busy)
            port->inbox = WAITING;
        else
            ask(port);
        found += port->inbox == WAITING;
    }
    return found + (self->news[self->count - 1].revents != 0);
}

static long milliseconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Look until there is something to read or the time is up: news need not be messages, a new peer is news as well. */
static int look_until(Poller *self, long timeout)
{
    long end = timeout > 0 ? milliseconds_now() + timeout : 0;
    for (;;) {
        int found = look(self, (int) timeout, NULL);
        if (found || timeout == 0)
            return found;
        if (timeout > 0 && (timeout = end - milliseconds_now()) <= 0)
            return 0;
    }
}

static PyObject *Poller_wait(Poller *self, PyObject *argument)
{
    long timeout = PyLong_AsLong(argument);
    PyObject *ready;
    int found, i;
    if (timeout == -1 && PyErr_Occurred())
        return NULL;
    for (i = 0; i < self->count - 1; i++)
        if (!port_is_open(poller_port(self, i)))
            return NULL;
    Py_BEGIN_ALLOW_THREADS
    found = look_until(self, timeout < -1 ? -1 : timeout > INT_MAX ? INT_MAX : timeout);
    Py_END_ALLOW_THREADS
    if (found < 0 && zmq.last_errno() != EINTR)
        return raise_zmq_error();
    if (PyErr_CheckSignals())
        return NULL;
    if (!(ready = PyList_New(0)))
        return NULL;
    for (i = 0; found > 0 && i < self->count; i++) {
        int last = i == self->count - 1;
        if (!(last ? self->news[i].revents : poller_port(self, i)->inbox == WAITING))
            continue;
        if (PyList_Append(ready, last ? Py_None : (PyObject *) poller_port(self, i))) {
            Py_DECREF(ready);
            return NULL;
        }
    }
    return ready;
}

/* ------------------------------------------------------------------ the rush

   While one socket is busy, turn after turn is the same: wait, drain, have the service called, send. The rush takes such
   turns without the rest of the loop, until anything else is to be done. */

enum { ROUNDS_WITHOUT_A_LOOK = 8 };

typedef struct {
    Poller *poller;
    Port *port;
    PyObject *receive; /* receive(socket, messages, now, sends) */
    PyObject *socket, *sends, *ports;
    double offset; /* between the clock of the machine and the broker's */
    Py_ssize_t limit, received, sent;
    double now;     /* the time that the last call was given */
    double longest; /* seconds of the longest call */
    double slept;   /* seconds of waiting for messages */
    PyObject *batch;   /* what was being sent when something failed, and what failed of it */
    PyObject *failures;
    PyObject *error; /* what receive has raised, and the messages that it had not taken then */
    PyObject *left;
} Rush;

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

/* Send all of a list and empty it; 1 when all has gone, 0 when some has not, -1 with an exception. */
static int send_and_clear(Rush *rush, PyObject *sends)
{
    PyObject *failures;
    Py_ssize_t count;
    if (!PyList_GET_SIZE(sends))
        return 1;
    if (!(failures = send_all(rush->ports, sends)))
        return -1;
    count = PyList_GET_SIZE(sends);
    if (!PyList_GET_SIZE(failures)) {
        rush->sent += count;
        Py_DECREF(failures);
        return PyList_SetSlice(sends, 0, count, NULL) ? -1 : 1;
    }
    rush->failures = failures;
    if (!(rush->batch = PyList_GetSlice(sends, 0, count)))
        return -1;
    return PyList_SetSlice(sends, 0, count, NULL);
}

static int are_sends(PyObject *effects)
{
    Py_ssize_t i;
    for (i = 0; i < PyList_GET_SIZE(effects); i++)
        if (!PyTuple_CheckExact(PyList_GET_ITEM(effects, i)))
            return 0;
    return 1;
}

/* Keep what a service has raised for the loop, if it is for that to judge; 0 when it is, -1 with the exception. */
static int keep_error(Rush *rush, PyObject *left)
{
    PyObject *kind, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_SystemExit))
        return -1;
    PyErr_Fetch(&kind, &rush->error, &trace);
    PyErr_NormalizeException(&kind, &rush->error, &trace);
    if (trace)
        PyException_SetTraceback(rush->error, trace);
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    rush->left = Py_NewRef(left);
    return 0;
}

/* Have the service called with messages, and send what it returns at once; 1 to go on, 0 to end, -1 with an exception. */
static int rush_through(Rush *rush, PyObject *messages, double started)
{
    PyObject *now = PyFloat_FromDouble(rush->now = started - rush->offset), *pending = PyObject_GetIter(messages);
    PyObject *arguments[] = {rush->socket, pending, now, rush->sends}, *none = NULL;
    int outcome = -1;
    double took;
    if (now && pending) {
        rush->received += PyList_GET_SIZE(messages);
        none = PyObject_Vectorcall(rush->receive, arguments, sizeof arguments / sizeof *arguments, NULL);
        outcome = none ? 1 : keep_error(rush, pending);
    }
    Py_XDECREF(none);
    Py_XDECREF(now);
    Py_XDECREF(pending);
    if ((took = seconds_now() - started) > rush->longest)
        rush->longest = took;
    if (outcome <= 0)
        return outcome;
    if (!rush->port->socket || !are_sends(rush->sends)) /* a job, or a connection: not for here */
        return 0;
    return send_and_clear(rush, rush->sends);
}

/* Wait for messages of the one port; 1 when they are there, 0 when there is anything else to be done. */
static int await_port(Rush *rush, double end)
{
    Poller *poller = rush->poller;
    double begun = seconds_now(), planned = end - begun;
    int found, i;
    if (planned <= 0)
        return 0;
    Py_BEGIN_ALLOW_THREADS
    found = look(poller, (int) (planned * 1000) + 1, rush->port);
    Py_END_ALLOW_THREADS
    rush->slept += seconds_now() - begun;
    if (found <= 0)
        return 0; /* errors will be met again by the loop itself */
    for (i = 0; i < poller->count - 1; i++)
        if (poller_port(poller, i) != rush->port && poller_port(poller, i)->inbox == WAITING)
            return 0;
    return !poller->news[poller->count - 1].revents && rush->port->inbox == WAITING;
}

/* One turn; 1 to go on, 0 to end, -1 with an exception. */
static int take_turn(Rush *rush, double now)
{
    PyObject *messages = drain(rush->port, rush->limit);
    int outcome = 1;
    if (!messages) {
        PyErr_Clear(); /* the loop itself will meet it, and knows what to do */
        rush->port->inbox = ASK;
        return 0;
    }
    if (PyList_GET_SIZE(messages))
        outcome = rush_through(rush, messages, now);
    Py_DECREF(messages);
    return outcome;
}

static int take_turns(Rush *rush, double seconds)
{
    double end = seconds_now() + seconds, now;
    int rounds = 0, outcome = 1;
    while (outcome > 0) {
        if ((rush->port->inbox == EMPTY || ++rounds % ROUNDS_WITHOUT_A_LOOK == 0) && !await_port(rush, end))
            return 0;
        /* also after a stall: the loop itself sees to the time that was lost, before anybody is told of it */
        if ((now = seconds_now()) > end)
            return 0;
        outcome = take_turn(rush, now);
    }
    return outcome;
}

/* In a rush the thread does not interrupt others at every message. It runs when they pause, and finds more to do. On a
   busy machine that saves a quarter of the CPU and costs no throughput; a few messages at a time do not make a rush. A
   thread whose scheduling somebody has chosen is left alone. */
#ifdef SCHED_BATCH
static int become_patient(void)
{
    struct sched_param none = {0};
    return sched_getscheduler(0) == SCHED_OTHER && sched_setscheduler(0, SCHED_BATCH, &none) == 0;
}

static void become_impatient(void)
{
    struct sched_param none = {0};
    if (sched_getscheduler(0) == SCHED_BATCH)
        sched_setscheduler(0, SCHED_OTHER, &none);
}
#else
static int become_patient(void) { return 0; }

static void become_impatient(void) {}
#endif

static PyObject *or_none(PyObject *object) { return object ? object : Py_None; }

static PyObject *Poller_rush(Poller *self, PyObject *args)
{
    Rush rush = {.poller = self};
    PyObject *result;
    int i, is_patient, outcome;
    double seconds;
    if (!PyArg_ParseTuple(args, "O!nOUO!O!dd", &PortType, &rush.port, &rush.limit, &rush.receive, &rush.socket,
                          &PyList_Type, &rush.sends, &PyDict_Type, &rush.ports, &rush.now,
                          &seconds))
        return NULL;
    rush.offset = seconds_now() - rush.now;
    for (i = 0; i < self->count - 1; i++)
        if (!port_is_open(poller_port(self, i)))
            return NULL;
    if (!port_is_open(rush.port))
        return NULL;
    is_patient = become_patient();
    outcome = take_turns(&rush, seconds);
    if (is_patient)
        become_impatient();
    result = outcome < 0
                 ? NULL
                 : Py_BuildValue("(nndddOOOO)", rush.received, rush.sent, rush.now, rush.longest, rush.slept,
                                 or_none(rush.batch), or_none(rush.failures), or_none(rush.error), or_none(rush.left));
    Py_XDECREF(rush.batch);
    Py_XDECREF(rush.failures);
    Py_XDECREF(rush.error);
    Py_XDECREF(rush.left);
    return result;
}

static PyMethodDef Poller_methods[] = {
    {"rush", (PyCFunction) Poller_rush, METH_VARARGS,
     "rush(port, limit, receive, socket, sends, ports, now, seconds): serve one busy port alone for a while."},
    {"wait", (PyCFunction) Poller_wait, METH_O,
     "wait(milliseconds): the ports that have messages, and None when the descriptor is readable; -1 waits for ever."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PollerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "scale0_core.io._wire.Poller",
    .tp_doc = "Poller(ports, fd): waits for messages on any of the ports, or for the descriptor.",
    .tp_basicsize = sizeof(Poller),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Poller_new,
    .tp_init = (initproc) Poller_init,
    .tp_dealloc = (destructor) Poller_dealloc,
    .tp_methods = Poller_methods,
};

/* ------------------------------------------------------------------ module */

static PyObject *wire_load_library(PyObject *Py_UNUSED(module), PyObject *path)
{
    static const struct { const char *name; void *slot; } wanted[] = {
        {"zmq_msg_init", &zmq.msg_init}, {"zmq_msg_recv", &zmq.msg_recv}, {"zmq_msg_send", &zmq.msg_send},
        {"zmq_msg_copy", &zmq.msg_copy}, {"zmq_msg_move", &zmq.msg_move}, {"zmq_msg_close", &zmq.msg_close},
        {"zmq_msg_more", &zmq.msg_more}, {"zmq_msg_data", &zmq.msg_data}, {"zmq_msg_size", &zmq.msg_size},
        {"zmq_send", &zmq.send}, {"zmq_getsockopt", &zmq.getsockopt}, {"zmq_errno", &zmq.last_errno},
        {"zmq_strerror", &zmq.strerror},
    };
    const char *name = PyUnicode_AsUTF8(path);
    void *library;
    size_t i;
    if (!name)
        return NULL;
    /* pyzmq's extension, which is loaded already: its dependencies, libzmq among them, are searched too */
    if (!(library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD))) {
        const char *why = dlerror();
        PyErr_Format(PyExc_OSError, "%s is not loaded: %s", name, why ? why : "nobody has loaded it yet");
        return NULL;
    }
    for (i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *function = dlsym(library, wanted[i].name);
        if (!function) {
            PyErr_Format(PyExc_OSError, "%s has no %s", name, wanted[i].name);
            return NULL;
        }
        memcpy(wanted[i].slot, &function, sizeof function);
    }
    Py_RETURN_NONE;
}

static PyMethodDef wire_methods[] = {
    {"load_library", wire_load_library, METH_O, "load_library(path): take libzmq's functions from a loaded library."},
    {"send", wire_send, METH_VARARGS,
     "send(ports, sends): send [(port name, frames), ...] without waiting; [(index, errno), ...] of those that failed."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef wire_module = {
    PyModuleDef_HEAD_INIT, .m_name = "_wire", .m_doc = "The native wire.", .m_size = -1, .m_methods = wire_methods,
};

PyMODINIT_FUNC PyInit__wire(void)
{
    PyObject *module;
    if (PyType_Ready(&BlobType) < 0 || PyType_Ready(&PortType) < 0 || PyType_Ready(&PollerType) < 0)
        return NULL;
    if (!(module = PyModule_Create(&wire_module)))
        return NULL;
    if (PyModule_AddObjectRef(module, "Blob", (PyObject *) &BlobType) < 0
        || PyModule_AddObjectRef(module, "Port", (PyObject *) &PortType) < 0
        || PyModule_AddObjectRef(module, "Poller", (PyObject *) &PollerType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
