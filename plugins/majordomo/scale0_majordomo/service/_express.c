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
    char done, streamed, timed, unsent;
    PyObject *line, *share; /* where it waits, and as whose */
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
    PyObject *ready, *queue, *shares, *held;
    double expiry, next_due;
    Py_ssize_t requests, replies, waiting, queue_bytes, max_waiting, max_bytes;
    char quick, simple;
} Service;

/* What one client has waiting at one service. */
typedef struct {
    PyObject_HEAD
    PyObject *client;
    Py_ssize_t waiting, bytes;
    char held;
} Share;

/* The requests of one client in a queue, in order: a ring of pointers, dead entries among them. */
typedef struct Line {
    PyObject_HEAD
    PyObject *share; /* NULL: those that were put back, of whichever client */
    struct FairQueue *queue; /* borrowed: a queue that ends takes this away */
    PyObject **ring;
    Py_ssize_t first, count, room, live;
    struct Line *before, *next; /* borrowed; in the circle of lines that have their turns */
} Line;

typedef struct FairQueue {
    PyObject_HEAD
    PyObject *lines; /* {Share: Line} */
    Line *again;     /* what comes before all others */
    Line *turn;      /* the next one in the circle; borrowed from `lines` */
    Py_ssize_t available;
} FairQueue;

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
    FLAG(Request, timed), FLAG(Request, unsent), OBJECT(Request, line), OBJECT(Request, share), END,
};

static PyMemberDef Worker_members[] = {
    OBJECT(Worker, dialect), OBJECT(Worker, head), OBJECT(Worker, service), OBJECT(Worker, in_hand),
    TIME(Worker, heard), TIME(Worker, sent), {"credit", T_INT, offsetof(Worker, credit), 0, NULL},
    FLAG(Worker, queued), END,
};

static PyMemberDef Service_members[] = {
    OBJECT(Service, ready), OBJECT(Service, queue), OBJECT(Service, shares), OBJECT(Service, held),
    TIME(Service, expiry), TIME(Service, next_due), NUMBER(Service, requests), NUMBER(Service, replies),
    NUMBER(Service, waiting), NUMBER(Service, queue_bytes), NUMBER(Service, max_waiting), NUMBER(Service, max_bytes),
    FLAG(Service, quick), FLAG(Service, simple), END,
};

static PyMemberDef Share_members[] = {
    OBJECT(Share, client), NUMBER(Share, waiting), NUMBER(Share, bytes), FLAG(Share, held), END,
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

static PyGetSetDef Worker_getset[] = {{NULL, NULL, NULL, NULL, NULL}}, Service_getset[] = {{NULL, NULL, NULL, NULL, NULL}},
                   Share_getset[] = {{NULL, NULL, NULL, NULL, NULL}};

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
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "scale0_majordomo.service._express." #Name,                            \
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

static PyObject *Share_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"client", NULL};
    PyObject *client;
    Share *self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &client))
        return NULL;
    if ((self = (Share *) type->tp_alloc(type, 0)))
        self->client = Py_NewRef(client);
    return (PyObject *) self;
}

RECORD(Share, "What one client has waiting at one service.")
RECORD(Request, "What a client asked for.")
RECORD(Worker, "Somebody who offers a service.")
RECORD(Service, "A name, those who offer it, and what waits for them.")

/* ------------------------------------------------------------------ queues */

enum { SPARE = 64 }; /* so many dead entries a line may keep before it is compacted */

static PyTypeObject LineType, FairQueueType;

static PyObject **place_in(Line *line, Py_ssize_t index)
{
    return &line->ring[(line->first + index) & (line->room - 1)];
}

static Request *entry(Line *line, Py_ssize_t index) { return (Request *) *place_in(line, index); }

/* Make room for one more entry. */
static int grow(Line *line)
{
    Py_ssize_t room = line->room ? 2 * line->room : 4, i;
    PyObject **ring;
    if (line->count < line->room)
        return 0;
    if (!(ring = PyMem_New(PyObject *, room))) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < line->count; i++)
        ring[i] = *place_in(line, i);
    PyMem_Free(line->ring);
    line->ring = ring;
    line->room = room;
    line->first = 0;
    return 0;
}

/* Remove the first entry, as a new reference. */
static Request *pop_first(Line *line)
{
    Request *request = entry(line, 0);
    line->first = (line->first + 1) & (line->room - 1);
    line->count--;
    return request;
}

/* Forget all entries. To let go of one may run Python code: the line is empty by then. */
static void empty(Line *line)
{
    PyObject **ring = line->ring;
    Py_ssize_t first = line->first, count = line->count, room = line->room, i;
    line->ring = NULL;
    line->first = line->count = line->room = 0;
    for (i = 0; i < count; i++)
        Py_DECREF(ring[(first + i) & (room - 1)]);
    PyMem_Free(ring);
}

/* Keep the entries that are alive, in a ring of their own. */
static int compact(Line *line)
{
    Py_ssize_t room = 4, kept = 0, i;
    PyObject **ring;
    while (room < line->count)
        room *= 2;
    if (!(ring = PyMem_New(PyObject *, room))) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < line->count; i++)
        if (!entry(line, i)->done)
            ring[kept++] = Py_NewRef((PyObject *) entry(line, i));
    empty(line);
    line->ring = ring;
    line->count = kept;
    line->room = room;
    return 0;
}

static void link_line(FairQueue *queue, Line *line)
{
    if (!queue->turn) {
        queue->turn = line->before = line->next = line;
        return;
    }
    line->next = queue->turn;
    line->before = queue->turn->before;
    line->before->next = line->next->before = line;
}

static void unlink_line(FairQueue *queue, Line *line)
{
    if (queue->turn == line)
        queue->turn = line->next == line ? NULL : line->next;
    line->before->next = line->next;
    line->next->before = line->before;
    line->before = line->next = NULL;
}

static Line *make_line(FairQueue *queue, PyObject *share)
{
    Line *line = (Line *) LineType.tp_alloc(&LineType, 0);
    if (line) {
        line->queue = queue;
        line->share = Py_XNewRef(share);
    }
    return line;
}

static Line *line_of(FairQueue *queue, Share *share) /* borrowed */
{
    Line *line = (Line *) PyDict_GetItemWithError(queue->lines, (PyObject *) share);
    if (line || PyErr_Occurred() || !(line = make_line(queue, (PyObject *) share)))
        return line;
    if (PyDict_SetItem(queue->lines, (PyObject *) share, (PyObject *) line)) {
        Py_DECREF(line);
        return NULL;
    }
    if (!share->held)
        link_line(queue, line);
    Py_DECREF(line); /* the queue has it */
    return line;
}

static void stands(Request *request, Line *line, Share *share)
{
    line->count++;
    line->live++;
    Py_XSETREF(request->line, Py_NewRef((PyObject *) line));
    Py_XSETREF(request->share, Py_NewRef((PyObject *) share));
}

static int queue_append(FairQueue *queue, Request *request, Share *share)
{
    Line *line = line_of(queue, share);
    if (!line || grow(line))
        return -1;
    *place_in(line, line->count) = Py_NewRef((PyObject *) request);
    if (line->next)
        queue->available++;
    stands(request, line, share);
    return 0;
}

static int forget_line(FairQueue *queue, Line *line)
{
    if (line->next)
        unlink_line(queue, line);
    return PyDict_DelItem(queue->lines, line->share);
}

/* The next request, as a new reference; NULL when there is none, or with an exception. */
static Request *queue_take(FairQueue *queue)
{
    Line *line = queue->again->live ? queue->again : queue->turn;
    Request *request;
    if (!line || !line->live)
        return NULL;
    Py_INCREF(line);
    for (request = pop_first(line); request->done; request = pop_first(line))
        Py_DECREF(request);
    queue->available--;
    line->live--;
    Py_CLEAR(request->line);
    if (!line->live)
        empty(line);
    if (line != queue->again) {
        if (line->live)
            queue->turn = line->next;
        else if (forget_line(queue, line))
            Py_CLEAR(request);
    }
    Py_DECREF(line);
    return request;
}

#define CHECKED(object, Name) PyObject_TypeCheck((PyObject *) (object), &Name##Type)

static int is_request_and_share(PyObject *const *args, Py_ssize_t count)
{
    if (count == 2 && CHECKED(args[0], Request) && CHECKED(args[1], Share))
        return 1;
    PyErr_SetString(PyExc_TypeError, "a request and a share are wanted");
    return 0;
}

static PyObject *FairQueue_append(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (!is_request_and_share(args, count) || queue_append((FairQueue *) self, (Request *) args[0], (Share *) args[1]))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *FairQueue_put_back(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    FairQueue *queue = (FairQueue *) self;
    Line *line = queue->again;
    if (!is_request_and_share(args, count) || grow(line))
        return NULL;
    line->first = (line->first - 1) & (line->room - 1);
    line->ring[line->first] = Py_NewRef(args[0]);
    queue->available++;
    stands((Request *) args[0], line, (Share *) args[1]);
    Py_RETURN_NONE;
}

static PyObject *FairQueue_take(PyObject *self, PyObject *Py_UNUSED(none))
{
    Request *request = queue_take((FairQueue *) self);
    return request ? (PyObject *) request : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *FairQueue_hold(PyObject *self, PyObject *share)
{
    FairQueue *queue = (FairQueue *) self;
    Line *line = (Line *) PyDict_GetItemWithError(queue->lines, share);
    if (!line && PyErr_Occurred())
        return NULL;
    if (line && line->next) {
        unlink_line(queue, line);
        queue->available -= line->live;
    }
    Py_RETURN_NONE;
}

static PyObject *FairQueue_release(PyObject *self, PyObject *share)
{
    FairQueue *queue = (FairQueue *) self;
    Line *line = (Line *) PyDict_GetItemWithError(queue->lines, share);
    if (!line && PyErr_Occurred())
        return NULL;
    if (line && !line->next) {
        link_line(queue, line);
        queue->available += line->live;
    }
    Py_RETURN_NONE;
}

static PyObject *Line_drop(PyObject *self, PyObject *Py_UNUSED(none))
{
    Line *line = (Line *) self;
    FairQueue *queue = line->queue;
    line->live--;
    if (queue && (!line->share || line->next))
        queue->available--;
    if (!line->live) {
        if (queue && line->share && forget_line(queue, line))
            return NULL;
        empty(line);
    }
    else if (line->count - line->live > (line->live > SPARE ? line->live : SPARE) && compact(line))
        return NULL;
    Py_RETURN_NONE;
}

/* Call `visit` with each line, those that were put back first, until it is not 0. */
static int each_line(FairQueue *queue, int (*visit)(Line *, void *), void *arg)
{
    PyObject *share, *line;
    Py_ssize_t place = 0;
    int stop = visit(queue->again, arg);
    while (!stop && PyDict_Next(queue->lines, &place, &share, &line))
        stop = visit((Line *) line, arg);
    return stop;
}

typedef struct {
    PyObject *found;
    double now, next_due;
    int ordered;
} Looking;

static int look_for_expired(Line *line, void *arg)
{
    Looking *looking = arg;
    Py_ssize_t i;
    for (i = 0; i < line->count; i++) {
        Request *request = entry(line, i);
        if (request->done)
            continue;
        if (request->due <= looking->now) {
            if (PyList_Append(looking->found, (PyObject *) request))
                return -1;
            continue;
        }
        if (request->due < looking->next_due)
            looking->next_due = request->due;
        if (looking->ordered && line->share)
            break;
    }
    return 0;
}

static PyObject *FairQueue_expired(PyObject *self, PyObject *args)
{
    Looking looking = {.next_due = INFINITY};
    PyObject *result;
    if (!PyArg_ParseTuple(args, "dp", &looking.now, &looking.ordered) || !(looking.found = PyList_New(0)))
        return NULL;
    result = each_line((FairQueue *) self, look_for_expired, &looking)
                 ? NULL
                 : Py_BuildValue("Od", looking.found, looking.next_due);
    Py_DECREF(looking.found);
    return result;
}

static int add_living(Line *line, void *list)
{
    Py_ssize_t i;
    for (i = 0; i < line->count; i++)
        if (!entry(line, i)->done && PyList_Append(list, *place_in(line, i)))
            return -1;
    return 0;
}

static PyObject *FairQueue_iter(PyObject *self)
{
    PyObject *list = PyList_New(0), *iterator;
    iterator = list && !each_line((FairQueue *) self, add_living, list) ? PyObject_GetIter(list) : NULL;
    Py_XDECREF(list);
    return iterator;
}

static int add_count(Line *line, void *sum)
{
    *(Py_ssize_t *) sum += line->count;
    return 0;
}

static Py_ssize_t FairQueue_length(PyObject *self)
{
    Py_ssize_t sum = 0;
    each_line((FairQueue *) self, add_count, &sum);
    return sum;
}

static PyObject *FairQueue_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    FairQueue *self = (FairQueue *) type->tp_alloc(type, 0);
    if (self && (!(self->lines = PyDict_New()) || !(self->again = make_line(self, NULL))))
        Py_CLEAR(self);
    return (PyObject *) self;
}

static int Line_traverse(PyObject *self, visitproc visit, void *arg)
{
    Line *line = (Line *) self;
    Py_ssize_t i;
    Py_VISIT(line->share);
    for (i = 0; i < line->count; i++)
        Py_VISIT(*place_in(line, i));
    return 0;
}

static int Line_clear(PyObject *self)
{
    Line *line = (Line *) self;
    line->live = 0;
    empty(line);
    return 0; /* its share stays: by that the queue finds it */
}

static void Line_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    empty((Line *) self);
    Py_CLEAR(((Line *) self)->share);
    Py_TYPE(self)->tp_free(self);
}

static int leave_queue(Line *line, void *Py_UNUSED(none))
{
    line->queue = NULL;
    line->before = line->next = NULL;
    return 0;
}

static int FairQueue_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((FairQueue *) self)->lines);
    Py_VISIT(((FairQueue *) self)->again);
    return 0;
}

/* The queue of a service that is being collected: it serves nobody any more, and stays whole for whoever asks. */
static int FairQueue_clear(PyObject *self)
{
    FairQueue *queue = (FairQueue *) self;
    if (queue->lines && queue->again)
        each_line(queue, leave_queue, NULL);
    queue->turn = NULL;
    queue->available = 0;
    if (queue->again)
        Line_clear((PyObject *) queue->again);
    if (queue->lines)
        PyDict_Clear(queue->lines);
    return 0;
}

static void FairQueue_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    FairQueue_clear(self);
    Py_CLEAR(((FairQueue *) self)->lines);
    Py_CLEAR(((FairQueue *) self)->again);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef Line_methods[] = {
    {"drop", Line_drop, METH_NOARGS, "Note that one of the requests is done."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Line_members[] = {
    {"share", T_OBJECT, offsetof(Line, share), READONLY, NULL}, NUMBER(Line, live), END,
};

static PyTypeObject LineType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "scale0_majordomo.service._express.Line",
    .tp_doc = "The requests of one client in a queue.",
    .tp_basicsize = sizeof(Line),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = Line_methods,
    .tp_members = Line_members,
    .tp_traverse = Line_traverse,
    .tp_clear = Line_clear,
    .tp_dealloc = Line_dealloc,
};

static PyMethodDef FairQueue_methods[] = {
    {"append", (PyCFunction) (void (*)(void)) FairQueue_append, METH_FASTCALL,
     "Add a request behind the others of its client."},
    {"put_back", (PyCFunction) (void (*)(void)) FairQueue_put_back, METH_FASTCALL, "Add a request before all others."},
    {"take", FairQueue_take, METH_NOARGS, "Remove and return the next request, or None."},
    {"hold", FairQueue_hold, METH_O, "Leave out the requests of a client."},
    {"release", FairQueue_release, METH_O, "Serve a client again."},
    {"expired", FairQueue_expired, METH_VARARGS, "Return the requests that are due, and when the next one is."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef FairQueue_members[] = {
    NUMBER(FairQueue, available), {"again", T_OBJECT, offsetof(FairQueue, again), READONLY, NULL}, END,
};

static PySequenceMethods FairQueue_sequence = {.sq_length = FairQueue_length};

static PyTypeObject FairQueueType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "scale0_majordomo.service._express.FairQueue",
    .tp_doc = "Requests of many clients, round robin by client.",
    .tp_basicsize = sizeof(FairQueue),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = FairQueue_new,
    .tp_methods = FairQueue_methods,
    .tp_members = FairQueue_members,
    .tp_as_sequence = &FairQueue_sequence,
    .tp_iter = FairQueue_iter,
    .tp_traverse = FairQueue_traverse,
    .tp_clear = FairQueue_clear,
    .tp_dealloc = FairQueue_dealloc,
};

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

/* What a request costs while it waits; `weigh` in desk.py has the same numbers. */
enum { REQUEST_OVERHEAD = 448, FRAME_OVERHEAD = 64, SHARE_OF_FREE = 4 };

static Py_ssize_t size_of(PyObject *frames, Py_ssize_t from)
{
    Py_ssize_t size = REQUEST_OVERHEAD, i;
    for (i = from; i < PyTuple_GET_SIZE(frames); i++) {
        PyObject *frame = PyTuple_GET_ITEM(frames, i);
        Py_ssize_t one = PyBytes_CheckExact(frame) ? PyBytes_GET_SIZE(frame) : PyObject_Size(frame);
        if (one < 0)
            return -1;
        size += one + FRAME_OVERHEAD;
    }
    return size;
}

/* What a client has waiting at a service, as a new reference; one that has nothing there gets a new share. */
static Share *share_of(Service *service, PyObject *client)
{
    Share *share = (Share *) PyDict_GetItemWithError(service->shares, client);
    if (share && !CHECKED(share, Share))
        PyErr_SetString(PyExc_TypeError, "a service has shares of its clients");
    if (share || PyErr_Occurred())
        return PyErr_Occurred() ? NULL : (Share *) Py_NewRef((PyObject *) share);
    if ((share = (Share *) ShareType.tp_alloc(&ShareType, 0)))
        share->client = Py_NewRef(client);
    return share;
}

/* Whether a request may wait: the queue has room, and its client has no more than its share of that. */
static int may_wait(Service *service, Share *share, Py_ssize_t size)
{
    return service->waiting < service->max_waiting && service->queue_bytes + size <= service->max_bytes
           && share->waiting / SHARE_OF_FREE < service->max_waiting - service->waiting
           && share->bytes / SHARE_OF_FREE < service->max_bytes - service->queue_bytes;
}

/* Let a request wait in its client's line. */
static int let_request_wait(Batch *batch, Service *service, Request *request, Share *share, Py_ssize_t size)
{
    PyObject *due, *none;
    request->size = size;
    request->due = batch->now + service->expiry;
    if (!share->waiting && PyDict_SetItem(service->shares, share->client, (PyObject *) share))
        return -1;
    if (queue_append((FairQueue *) service->queue, request, share))
        return -1;
    share->waiting++;
    share->bytes += size;
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
    PyObject *client = PyTuple_GET_ITEM(frames, 0), *name = PyTuple_GET_ITEM(frames, 3);
    Service *service;
    Request *request;
    Worker *worker = NULL;
    Share *share = NULL;
    Py_ssize_t size = 0;
    enum outcome outcome = FAILED;
    if (!PyBytes_CheckExact(client) || !PyBytes_CheckExact(name))
        return NOT_COMMON;
    if (!(service = (Service *) PyDict_GetItemWithError(batch->express->services, name)))
        return PyErr_Occurred() ? FAILED : NOT_COMMON;
    if (!CHECKED(service, Service) || !service->quick || !service->simple || !service->queue
        || !CHECKED(service->queue, FairQueue) || !service->shares || !PyDict_Check(service->shares) || !service->held
        || !PyDict_Check(service->held) || PyDict_GET_SIZE(service->held))
        return NOT_COMMON; /* or some client reads too slowly */
    Py_INCREF(service);
    if (!((FairQueue *) service->queue)->available && !(worker = take_worker(service)) && PyErr_Occurred())
        goto done;
    if (!worker) {
        if ((size = size_of(frames, 4)) < 0 || !(share = share_of(service, client)))
            goto done;
        if (!may_wait(service, share, size)) {
            outcome = NOT_COMMON; /* it is refused, and that is not for here */
            goto done;
        }
    }
    if (!(request = make_request(batch->express, service, frames)))
        goto done;
    service->requests++;
    if (!(worker ? hand_over(batch, request, worker) : let_request_wait(batch, service, request, share, size)))
        outcome = DONE;
    Py_DECREF(request);
done:
    Py_XDECREF(worker);
    Py_XDECREF(share);
    Py_DECREF(service);
    return outcome;
}

/* Note that a request that was taken out of its queue waits no longer. */
static int waits_no_longer(Service *service, Request *request)
{
    Share *share = (Share *) request->share;
    int bad;
    service->waiting--;
    service->queue_bytes -= request->size;
    if (!share || !CHECKED(share, Share)) {
        PyErr_SetString(PyExc_TypeError, "a request that waits is of a client's share");
        return -1;
    }
    share->waiting--;
    share->bytes -= request->size;
    bad = !share->waiting && PyDict_DelItem(service->shares, share->client);
    Py_CLEAR(request->share);
    return bad;
}

/* The next request for a worker, as a new reference; NULL when there is none, or with an exception. */
static Request *following(Service *service, Worker *worker)
{
    Request *request;
    if (service->simple && CHECKED(service->queue, FairQueue)) {
        request = queue_take((FairQueue *) service->queue);
        if (request && waits_no_longer(service, request))
            Py_CLEAR(request);
        return request;
    }
    request = (Request *) PyObject_CallMethodOneArg((PyObject *) service, take_request_name, (PyObject *) worker);
    if (request && !CHECKED(request, Request))
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
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "scale0_majordomo.service._express.Express",
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
        {"Share", &ShareType}, {"Line", &LineType}, {"FairQueue", &FairQueueType}, {"Express", &ExpressType},
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
