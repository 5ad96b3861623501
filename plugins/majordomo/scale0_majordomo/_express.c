/* The express: what comes most often, requests of MDP 0.1 clients and replies of stock workers, in C.

   It is a shortcut through service.py and nothing more: the same records, the same queues, the same counts. Whatever is
   not exactly the common case is left untouched for the service's own `receive`, message by message and in order. The
   records are types of C with members that Python reads and writes like any attributes (express.py has the same in
   Python, for where no compiler is). */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ records */

typedef struct {
    PyObject_HEAD
    /* what every request needs stands together: thousands wait, and each has left the caches when its turn comes */
    PyObject *frames; /* the message as it came: `back` and `body` are cut from it when somebody asks for them */
    PyObject *address, *dialect, *service, *worker, *parts, *inside;
    double given, due;
    Py_ssize_t size;
    int tries;
    char done, streamed, timed, unsent, assigned;
    PyObject *back, *body, *open_as, *options, *key, *retry, *part;
    double ends;
    Py_ssize_t passed_on;
    long priority;
} Request;

typedef struct {
    PyObject_HEAD
    PyObject *dialect, *head, *service, *in_hand;
    double heard, sent;
    int credit;
    char queued;
} Worker;

typedef struct {
    PyObject_HEAD
    PyObject *ready, *queue, *again;
    double expiry, next_due;
    Py_ssize_t requests, replies, waiting, queue_bytes, max_waiting, max_bytes, dead;
    char quick, simple;
} Service;

enum { BACK = 4 }; /* so many frames of a message are `back` */

static PyObject *no_bytes, *no_frames; /* b"" and () */

#define OBJECT(type, name) {#name, T_OBJECT, offsetof(type, name), 0, NULL}
#define NUMBER(type, name) {#name, T_PYSSIZET, offsetof(type, name), 0, NULL}
#define TIME(type, name) {#name, T_DOUBLE, offsetof(type, name), 0, NULL}
#define FLAG(type, name) {#name, T_BOOL, offsetof(type, name), 0, NULL}
#define END {NULL, 0, 0, 0, NULL}

static PyMemberDef Request_members[] = {
    {"_frames", T_OBJECT, offsetof(Request, frames), READONLY, NULL},
    {"_back", T_OBJECT, offsetof(Request, back), READONLY, NULL},
    {"_body", T_OBJECT, offsetof(Request, body), READONLY, NULL},
    OBJECT(Request, address), OBJECT(Request, dialect), OBJECT(Request, service), OBJECT(Request, worker),
    OBJECT(Request, parts), OBJECT(Request, open_as), OBJECT(Request, options), OBJECT(Request, key),
    OBJECT(Request, retry), OBJECT(Request, inside), OBJECT(Request, part), TIME(Request, given), TIME(Request, due),
    TIME(Request, ends), NUMBER(Request, size),
    NUMBER(Request, passed_on), {"priority", T_LONG, offsetof(Request, priority), 0, NULL},
    {"tries", T_INT, offsetof(Request, tries), 0, NULL}, FLAG(Request, done), FLAG(Request, streamed),
    FLAG(Request, timed), FLAG(Request, unsent), FLAG(Request, assigned), END,
};

static PyMemberDef Worker_members[] = {
    OBJECT(Worker, dialect), OBJECT(Worker, head), OBJECT(Worker, service), OBJECT(Worker, in_hand),
    TIME(Worker, heard), TIME(Worker, sent), {"credit", T_INT, offsetof(Worker, credit), 0, NULL},
    FLAG(Worker, queued), END,
};

static PyMemberDef Service_members[] = {
    OBJECT(Service, ready), OBJECT(Service, queue), OBJECT(Service, again), TIME(Service, expiry),
    TIME(Service, next_due), NUMBER(Service, requests), NUMBER(Service, replies), NUMBER(Service, waiting),
    NUMBER(Service, queue_bytes), NUMBER(Service, max_waiting), NUMBER(Service, max_bytes), NUMBER(Service, dead),
    FLAG(Service, quick), FLAG(Service, simple), END,
};

/* Every member that is an object is visited and cleared by way of the table above. */
static int visit_members(PyObject *self, PyMemberDef *members, visitproc visit, void *arg)
{
    for (; members->name; members++)
        if (members->type == T_OBJECT)
            Py_VISIT(*(PyObject **) ((char *) self + members->offset));
    return 0;
}

static int clear_members(PyObject *self, PyMemberDef *members)
{
    for (; members->name; members++)
        if (members->type == T_OBJECT)
            Py_CLEAR(*(PyObject **) ((char *) self + members->offset));
    return 0;
}

/* Cut the message of a request into its parts. To make a tuple may run Python code, by the garbage collector, and that
   may look at the same request. */
static int cut(Request *request)
{
    PyObject *frames = Py_XNewRef(request->frames), *back, *body;
    if (!frames)
        return 0;
    back = PyTuple_GetSlice(frames, 0, BACK);
    body = PyTuple_GetSlice(frames, BACK, PyTuple_GET_SIZE(frames));
    Py_DECREF(frames);
    if (back && body && request->frames) {
        Py_XSETREF(request->back, Py_NewRef(back));
        Py_XSETREF(request->body, Py_NewRef(body));
        Py_CLEAR(request->frames);
    }
    Py_XDECREF(back);
    Py_XDECREF(body);
    return back && body ? 0 : -1;
}

static PyObject *Request_get(PyObject *self, void *offset)
{
    PyObject *part = cut((Request *) self) ? NULL : *(PyObject **) ((char *) self + (size_t) offset);
    return part ? Py_NewRef(part) : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static int Request_set(PyObject *self, PyObject *value, void *offset)
{
    PyObject **part = (PyObject **) ((char *) self + (size_t) offset);
    if (cut((Request *) self))
        return -1;
    Py_XSETREF(*part, Py_XNewRef(value));
    return 0;
}

static PyGetSetDef Request_getset[] = {
    {"back", Request_get, Request_set, NULL, (void *) offsetof(Request, back)},
    {"body", Request_get, Request_set, NULL, (void *) offsetof(Request, body)},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyGetSetDef Worker_getset[] = {{NULL, NULL, NULL, NULL, NULL}}, Service_getset[] = {{NULL, NULL, NULL, NULL, NULL}};

#define RECORD(Name, doc)                                                                                              \
    static int Name##_traverse(PyObject *self, visitproc visit, void *arg)                                             \
    {                                                                                                                  \
        return visit_members(self, Name##_members, visit, arg);                                                        \
    }                                                                                                                  \
    static int Name##_clear(PyObject *self) { return clear_members(self, Name##_members); }                            \
    static void Name##_dealloc(PyObject *self)                                                                         \
    {                                                                                                                  \
        PyObject_GC_UnTrack(self);                                                                                     \
        clear_members(self, Name##_members);                                                                           \
        Py_TYPE(self)->tp_free(self);                                                                                  \
    }                                                                                                                  \
    static PyTypeObject Name##Type = {                                                                                 \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "scale0_majordomo._express." #Name "Base",                            \
        .tp_doc = doc,                                                                                                 \
        .tp_basicsize = sizeof(Name),                                                                                  \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,                                     \
        .tp_new = Name##_new,                                                                                          \
        .tp_traverse = Name##_traverse,                                                                                \
        .tp_clear = Name##_clear,                                                                                      \
        .tp_dealloc = Name##_dealloc,                                                                                  \
        .tp_members = Name##_members,                                                                                  \
        .tp_getset = Name##_getset,                                                                                    \
    };

static PyObject *Worker_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return type->tp_alloc(type, 0);
}

static PyObject *Service_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return type->tp_alloc(type, 0);
}

static PyObject *Request_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Request *self = (Request *) type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->open_as = Py_NewRef(no_frames);
    self->options = Py_NewRef(no_bytes);
    self->key = Py_NewRef(no_bytes);
    self->given = self->due = self->ends = INFINITY;
    return (PyObject *) self;
}

RECORD(Request, "What a client asked for.")
RECORD(Worker, "Somebody who offers a service.")
RECORD(Service, "A name, those who offer it, and what waits for them.")

/* ------------------------------------------------------------------ the express */

typedef struct {
    PyObject_HEAD
    PyObject *services;     /* {name: Service} */
    PyObject *workers;      /* {routing id: Worker} */
    PyObject *addresses;    /* gives the number of the next request */
    PyObject *request_type; /* the class of requests */
    PyObject *socket;       /* the name of the socket, for sends */
    PyObject *receive;      /* receive(socket, frames, now): all that is not common */
    PyObject *expect_due;   /* expect_due(service, due): something will have waited too long before all others */
    PyObject *mdp01, *mdp02;
    PyObject *telling; /* tells of each reply, while somebody observes; else None */
} Express;

/* One batch: what does not change from message to message. */
typedef struct {
    Express *express;
    PyObject *socket, *now_object, *effects, *later;
    double now;
} Batch;

/* Some frames in a row of those of a tuple. */
typedef struct {
    PyObject *tuple;
    Py_ssize_t from, to;
} Frames;

enum outcome { FAILED = -1, NOT_COMMON = 0, DONE = 1 };

static PyObject *append_name, *popleft_name, *request_name, *take_request_name, *answered_name;

static int is_text(PyObject *frames, Py_ssize_t place, const char *text, Py_ssize_t size)
{
    PyObject *frame = PyTuple_GET_ITEM(frames, place);
    return PyBytes_CheckExact(frame) && PyBytes_GET_SIZE(frame) == size
           && memcmp(PyBytes_AS_STRING(frame), text, (size_t) size) == 0;
}

#define IS(frames, place, text) is_text(frames, place, text, (Py_ssize_t) sizeof text - 1)

static int call_append(PyObject *queue, PyObject *item)
{
    PyObject *none = PyObject_CallMethodOneArg(queue, append_name, item);
    Py_XDECREF(none);
    return none ? 0 : -1;
}

static Frames all_of(PyObject *object)
{
    int is_tuple = object && PyTuple_Check(object);
    return (Frames){is_tuple ? object : NULL, 0, is_tuple ? PyTuple_GET_SIZE(object) : 0};
}

static Frames back_of(Request *request)
{
    return request->frames ? (Frames){request->frames, 0, BACK} : all_of(request->back);
}

static Frames body_of(Request *request)
{
    Frames body = all_of(request->frames ? request->frames : request->body);
    body.from = request->frames ? BACK : 0;
    return body;
}

static PyObject *joined(Frames head, PyObject *address, Frames body)
{
    PyObject *frames = PyTuple_New(head.to - head.from + (address ? 2 : 0) + body.to - body.from);
    Py_ssize_t place = 0, i;
    if (!frames)
        return NULL;
    for (i = head.from; i < head.to; i++)
        PyTuple_SET_ITEM(frames, place++, Py_NewRef(PyTuple_GET_ITEM(head.tuple, i)));
    if (address) {
        PyTuple_SET_ITEM(frames, place++, Py_NewRef(address));
        PyTuple_SET_ITEM(frames, place++, Py_NewRef(no_bytes));
    }
    for (i = body.from; i < body.to; i++)
        PyTuple_SET_ITEM(frames, place++, Py_NewRef(PyTuple_GET_ITEM(body.tuple, i)));
    return frames;
}

/* Put a message on a list of sends: some frames, perhaps two more, and others. */
static int add_send(Batch *batch, PyObject *sends, Frames head, PyObject *address, Frames body)
{
    PyObject *frames, *send;
    int bad;
    if (!head.tuple || !body.tuple) {
        PyErr_SetString(PyExc_TypeError, "frames come as a tuple");
        return -1;
    }
    Py_INCREF(head.tuple); /* a request may let go of them meanwhile: see cut() */
    Py_INCREF(body.tuple);
    frames = joined(head, address, body);
    Py_DECREF(head.tuple);
    Py_DECREF(body.tuple);
    send = frames ? PyTuple_Pack(2, batch->express->socket, frames) : NULL;
    Py_XDECREF(frames);
    bad = !send || PyList_Append(sends, send);
    Py_XDECREF(send);
    return bad ? -1 : 0;
}

/* Give up holding anything back: what comes now may be for the same client, and must not overtake. */
static int hold_no_more(Batch *batch)
{
    Py_ssize_t end = PyList_GET_SIZE(batch->effects);
    if (batch->later == batch->effects || !PyList_GET_SIZE(batch->later))
        return 0;
    return PyList_SetSlice(batch->effects, end, end, batch->later)
           || PyList_SetSlice(batch->later, 0, PyList_GET_SIZE(batch->later), NULL);
}

/* The same for a worker of our own dialect, which is not that common: its frames are written in Python. */
static int add_written(Batch *batch, Worker *worker, Request *request)
{
    PyObject *frames = PyObject_CallMethodOneArg((PyObject *) worker, request_name, (PyObject *) request);
    PyObject *send = frames ? PyTuple_Pack(2, batch->express->socket, frames) : NULL;
    int bad = !send || PyList_Append(batch->effects, send);
    Py_XDECREF(frames);
    Py_XDECREF(send);
    return bad ? -1 : 0;
}

static int has_room(Worker *worker) { return PyDict_GET_SIZE(worker->in_hand) < worker->credit; }

/* Let a worker stand at the end of those that are ready, if it does not stand there. */
static int let_wait(Worker *worker)
{
    if (worker->queued)
        return 0;
    worker->queued = 1;
    return call_append(((Service *) worker->service)->ready, (PyObject *) worker);
}

static int hand_over(Batch *batch, Request *request, Worker *worker)
{
    Py_XSETREF(request->worker, Py_NewRef((PyObject *) worker));
    request->given = batch->now;
    request->tries++;
    if (PyDict_SetItem(worker->in_hand, request->address, (PyObject *) request))
        return -1;
    worker->sent = batch->now;
    if (has_room(worker) && let_wait(worker))
        return -1;
    if (worker->dialect != batch->express->mdp01 && worker->dialect != batch->express->mdp02)
        return add_written(batch, worker, request);
    return add_send(batch, batch->effects, all_of(worker->head), request->address, body_of(request));
}

/* What is taken out of a queue, which must not be empty. */
static PyObject *take_first(PyObject *queue, PyTypeObject *type)
{
    PyObject *first = PyObject_CallMethodNoArgs(queue, popleft_name);
    if (first && !PyObject_TypeCheck(first, type)) {
        PyErr_Format(PyExc_TypeError, "a %s stands in a queue of others", Py_TYPE(first)->tp_name);
        Py_CLEAR(first);
    }
    return first;
}

static int waits_somebody(PyObject *queue)
{
    return PyObject_Size(queue) > 0;
}

/* The worker that is ready longest, as a new reference; NULL when there is none, or with an exception. */
static Worker *take_worker(Service *service)
{
    while (waits_somebody(service->ready)) {
        Worker *worker = (Worker *) take_first(service->ready, &WorkerType);
        if (!worker)
            return NULL;
        worker->queued = 0;
        if (has_room(worker))
            return worker;
        Py_DECREF(worker);
    }
    return NULL;
}

static PyObject *next_address(Express *express)
{
    PyObject *number = PyIter_Next(express->addresses);
    char text[20], *end = text + sizeof text, *first = end;
    unsigned long long value;
    if (!number)
        return NULL;
    value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (value == (unsigned long long) -1 && PyErr_Occurred())
        return NULL;
    do /* snprintf takes four times as long */
        *--first = (char) ('0' + value % 10);
    while (value /= 10);
    return PyBytes_FromStringAndSize(first, end - first);
}

static Request *make_request(Express *express, Service *service, PyObject *frames)
{
    Request *request = (Request *) Request_new((PyTypeObject *) express->request_type, NULL, NULL);
    if (!request)
        return NULL;
    request->dialect = Py_NewRef(express->mdp01);
    request->service = Py_NewRef((PyObject *) service);
    request->frames = Py_NewRef(frames);
    if (!(request->address = next_address(express)))
        Py_CLEAR(request);
    return request;
}

static Py_ssize_t size_of(PyObject *frames, Py_ssize_t from)
{
    Py_ssize_t size = 0, i;
    for (i = from; i < PyTuple_GET_SIZE(frames); i++) {
        PyObject *frame = PyTuple_GET_ITEM(frames, i);
        Py_ssize_t one = PyBytes_CheckExact(frame) ? PyBytes_GET_SIZE(frame) : PyObject_Size(frame);
        if (one < 0)
            return -1;
        size += one;
    }
    return size;
}

/* Let a request wait at the end of its queue. */
static int let_request_wait(Batch *batch, Service *service, Request *request, Py_ssize_t size)
{
    PyObject *due, *none;
    request->size = size;
    request->due = batch->now + service->expiry;
    if (call_append(service->queue, (PyObject *) request))
        return -1;
    service->waiting++;
    service->queue_bytes += size;
    if (!(request->due < service->next_due))
        return 0;
    if (!(due = PyFloat_FromDouble(request->due)))
        return -1;
    none = PyObject_CallFunctionObjArgs(batch->express->expect_due, (PyObject *) service, due, NULL);
    Py_DECREF(due);
    Py_XDECREF(none);
    return none ? 0 : -1;
}

/* [client, "", MDPC01, service, body...] */
static enum outcome take_request(Batch *batch, PyObject *frames)
{
    PyObject *name = PyTuple_GET_ITEM(frames, 3);
    Service *service;
    Request *request;
    Worker *worker = NULL;
    Py_ssize_t size;
    int bad;
    if (!PyBytes_CheckExact(name))
        return NOT_COMMON;
    if (!(service = (Service *) PyDict_GetItemWithError(batch->express->services, name)))
        return PyErr_Occurred() ? FAILED : NOT_COMMON;
    if (!PyObject_TypeCheck((PyObject *) service, &ServiceType) || !service->quick || !service->simple)
        return NOT_COMMON;
    Py_INCREF(service);
    if (!service->waiting && !(worker = take_worker(service)) && PyErr_Occurred()) {
        Py_DECREF(service);
        return FAILED;
    }
    size = worker ? 0 : size_of(frames, 4);
    if (!worker && size >= 0
        && (service->waiting >= service->max_waiting || service->queue_bytes + size > service->max_bytes)) {
        Py_DECREF(service);
        return NOT_COMMON; /* it is refused, and that is not for here */
    }
    request = size < 0 ? NULL : make_request(batch->express, service, frames);
    bad = !request;
    if (!bad) {
        service->requests++;
        bad = worker ? hand_over(batch, request, worker) : let_request_wait(batch, service, request, size);
    }
    Py_XDECREF(worker);
    Py_XDECREF(request);
    Py_DECREF(service);
    return bad ? FAILED : DONE;
}

/* The next request for a worker, as a new reference; NULL when there is none, or with an exception. */
static Request *following(Service *service, Worker *worker)
{
    Request *request;
    while (service->simple && waits_somebody(service->queue) && !waits_somebody(service->again)) {
        if (!(request = (Request *) take_first(service->queue, &RequestType)))
            return NULL;
        if (!request->done) {
            service->waiting--;
            service->queue_bytes -= request->size;
            return request;
        }
        service->dead--;
        Py_DECREF(request);
    }
    request = (Request *) PyObject_CallMethodOneArg((PyObject *) service, take_request_name, (PyObject *) worker);
    if (request && !PyObject_TypeCheck((PyObject *) request, &RequestType))
        Py_CLEAR(request); /* None */
    return request;
}

/* Let a worker go on that has answered. */
static int go_on(Batch *batch, Service *service, Worker *worker)
{
    if (service->waiting && worker->credit > 0) {
        Request *request = following(service, worker);
        int bad;
        if (request) {
            bad = hand_over(batch, request, worker);
            Py_DECREF(request);
            return bad;
        }
        if (PyErr_Occurred())
            return -1;
    }
    return let_wait(worker);
}

static int tell(Batch *batch, Request *request, Worker *worker, PyObject *frames, Py_ssize_t from)
{
    PyObject *body = PyTuple_GetSlice(frames, from, PyTuple_GET_SIZE(frames)), *telling, *none;
    if (!body)
        return -1;
    telling = Py_NewRef(batch->express->telling);
    none = PyObject_CallMethodObjArgs(telling, answered_name, (PyObject *) request, (PyObject *) worker, body,
                                      batch->now_object, NULL);
    Py_DECREF(telling);
    Py_DECREF(body);
    Py_XDECREF(none);
    return none ? 0 : -1;
}

/* A reply whose address is in one place and whose body begins at another. */
static enum outcome take_reply(Batch *batch, PyObject *frames, PyObject *dialect, Py_ssize_t place, Py_ssize_t body)
{
    PyObject *peer = PyTuple_GET_ITEM(frames, 0), *address = PyTuple_GET_ITEM(frames, place);
    Express *express = batch->express;
    Worker *worker;
    Request *request;
    Service *service;
    int bad;
    if (!PyBytes_CheckExact(peer) || !PyBytes_CheckExact(address))
        return NOT_COMMON;
    if (!(worker = (Worker *) PyDict_GetItemWithError(express->workers, peer)))
        return PyErr_Occurred() ? FAILED : NOT_COMMON;
    if (!PyObject_TypeCheck((PyObject *) worker, &WorkerType) || worker->dialect != dialect)
        return NOT_COMMON;
    if (!(request = (Request *) PyDict_GetItemWithError(worker->in_hand, address)))
        return PyErr_Occurred() ? FAILED : NOT_COMMON;
    service = (Service *) request->service;
    if (request->done || (request->parts && request->parts != Py_None) || (request->inside && request->inside != Py_None)
        || (request->dialect != express->mdp01 && request->dialect != express->mdp02))
        return NOT_COMMON;
    Py_INCREF(request);
    Py_INCREF(worker);
    Py_INCREF(service);
    bad = PyDict_DelItem(worker->in_hand, address);
    if (!bad) {
        worker->heard = batch->now;
        service->replies++;
        bad = express->telling != Py_None && tell(batch, request, worker, frames, body);
        request->done = 1;
    }
    if (!bad)
        /* a client whose further requests wait is not held up by a reply that waits a moment for others */
        bad = (!service->waiting && hold_no_more(batch))
              || add_send(batch, service->waiting ? batch->later : batch->effects, back_of(request), NULL,
                          (Frames){frames, body, PyTuple_GET_SIZE(frames)})
              || go_on(batch, service, worker);
    Py_DECREF(service);
    Py_DECREF(worker);
    Py_DECREF(request);
    return bad ? FAILED : DONE;
}

static enum outcome take(Batch *batch, PyObject *frames)
{
    Py_ssize_t count = PyTuple_CheckExact(frames) ? PyTuple_GET_SIZE(frames) : 0;
    if (count < 5)
        return NOT_COMMON;
    if (IS(frames, 1, "")) {
        if (IS(frames, 2, "MDPC01"))
            return take_request(batch, frames);
        if (count > 6 && IS(frames, 2, "MDPW01") && IS(frames, 3, "\x03") && IS(frames, 5, ""))
            return take_reply(batch, frames, batch->express->mdp01, 4, 6);
    }
    else if (count > 5 && IS(frames, 1, "MDPW02") && IS(frames, 2, "\x04") && IS(frames, 4, ""))
        return take_reply(batch, frames, batch->express->mdp02, 3, 5);
    return NOT_COMMON;
}

/* What the service itself makes of a message. */
static int receive_slowly(Batch *batch, PyObject *frames)
{
    PyObject *effects = PyObject_CallFunctionObjArgs(
        batch->express->receive, batch->socket, frames, batch->now_object, NULL);
    PyObject *list = effects ? PySequence_List(effects) : NULL;
    int bad = !list || (PyList_GET_SIZE(list) && hold_no_more(batch))
              || PyList_SetSlice(batch->effects, PyList_GET_SIZE(batch->effects), PyList_GET_SIZE(batch->effects), list);
    Py_XDECREF(effects);
    Py_XDECREF(list);
    return bad ? -1 : 0;
}

static PyObject *Express_receive_batch(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Batch batch = {.express = (Express *) self};
    PyObject *messages, *frames;
    int is_own;
    if (count != 5 || !batch.express->services || !PyIter_Check(args[1]) || !PyList_Check(args[3])
        || !PyList_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "an express that was made whole takes a socket's name, an iterator of messages, "
                                         "the time, and two lists");
        return NULL;
    }
    batch.socket = args[0];
    messages = args[1];
    batch.now_object = args[2];
    batch.effects = args[3];
    batch.later = args[4];
    batch.now = PyFloat_AsDouble(batch.now_object);
    if (batch.now == -1.0 && PyErr_Occurred())
        return NULL;
    if ((is_own = PyObject_RichCompareBool(batch.socket, batch.express->socket, Py_EQ)) < 0)
        return NULL;
    while ((frames = PyIter_Next(messages))) {
        enum outcome outcome = is_own ? take(&batch, frames) : NOT_COMMON;
        if (outcome == NOT_COMMON && receive_slowly(&batch, frames))
            outcome = FAILED;
        Py_DECREF(frames);
        if (outcome == FAILED)
            return NULL;
    }
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMemberDef Express_members[] = {
    OBJECT(Express, services), OBJECT(Express, workers), OBJECT(Express, addresses), OBJECT(Express, request_type),
    OBJECT(Express, socket), OBJECT(Express, receive), OBJECT(Express, expect_due), OBJECT(Express, mdp01),
    OBJECT(Express, mdp02), OBJECT(Express, telling), END,
};

static PyObject *Express_get_telling(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *telling = ((Express *) self)->telling; /* not there when it was not made whole */
    return Py_NewRef(telling ? telling : Py_None);
}

static int Express_set_telling(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    Py_XSETREF(((Express *) self)->telling, Py_NewRef(value ? value : Py_None));
    return 0;
}

static PyGetSetDef Express_getset[] = {
    {"telling", Express_get_telling, Express_set_telling, "Is told of each reply, while somebody observes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef Express_methods[] = {
    {"receive_batch", (PyCFunction) (void (*)(void)) Express_receive_batch, METH_FASTCALL,
     "receive_batch(socket, messages, now, effects, later): take the messages of an iterator."},
    {NULL, NULL, 0, NULL},
};

static int Express_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"services", "workers", "addresses", "request_type", "socket", "receive", "expect_due",
                            "mdp01", "mdp02", NULL};
    Express *self = (Express *) object;
    PyObject *given[9];
    PyObject **own[9] = {&self->services, &self->workers, &self->addresses, &self->request_type, &self->socket,
                         &self->receive, &self->expect_due, &self->mdp01, &self->mdp02};
    int i;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OO!UOOOO", names, &PyDict_Type, &given[0], &PyDict_Type,
                                     &given[1], &given[2], &PyType_Type, &given[3], &given[4], &given[5], &given[6],
                                     &given[7], &given[8]))
        return -1;
    if (!PyIter_Check(given[2]) || !PyType_IsSubtype((PyTypeObject *) given[3], &RequestType)) {
        PyErr_SetString(PyExc_TypeError, "addresses are an iterator, and requests have their base here");
        return -1;
    }
    for (i = 0; i < 9; i++)
        Py_XSETREF(*own[i], Py_NewRef(given[i]));
    Py_XSETREF(self->telling, Py_NewRef(Py_None));
    return 0;
}

static int Express_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_members(self, Express_members, visit, arg);
}

static int Express_clear(PyObject *self) { return clear_members(self, Express_members); }

static void Express_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    clear_members(self, Express_members);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject ExpressType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "scale0_majordomo._express.Express",
    .tp_doc = "Takes messages for a Majordomo service.",
    .tp_basicsize = sizeof(Express),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = Express_init,
    .tp_methods = Express_methods,
    .tp_getset = Express_getset,
    .tp_traverse = Express_traverse,
    .tp_clear = Express_clear,
    .tp_dealloc = Express_dealloc,
};

/* ------------------------------------------------------------------ module */

static struct PyModuleDef express_module = {
    PyModuleDef_HEAD_INIT, .m_name = "_express", .m_doc = "The common case of Majordomo, in C.", .m_size = -1,
};

PyMODINIT_FUNC PyInit__express(void)
{
    struct { const char *name; PyTypeObject *type; } types[] = {
        {"RequestBase", &RequestType}, {"WorkerBase", &WorkerType}, {"ServiceBase", &ServiceType},
        {"Express", &ExpressType},
    };
    struct { PyObject **place; const char *text; } names[] = {
        {&append_name, "append"}, {&popleft_name, "popleft"}, {&request_name, "request"},
        {&take_request_name, "take_request"}, {&answered_name, "answered"},
    };
    PyObject *module;
    size_t i;
    if (!(no_bytes = PyBytes_FromStringAndSize("", 0)) || !(no_frames = PyTuple_New(0)))
        return NULL;
    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].place = PyUnicode_InternFromString(names[i].text)))
            return NULL;
    if (!(module = PyModule_Create(&express_module)))
        return NULL;
    for (i = 0; i < sizeof types / sizeof *types; i++)
        if (PyType_Ready(types[i].type) < 0 || PyModule_AddObjectRef(module, types[i].name, (PyObject *) types[i].type)) {
            Py_DECREF(module);
            return NULL;
        }
    return module;
}
