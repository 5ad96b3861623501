/* Packed events: a record of forty bytes is made and appended in one call. `packing.py` says what a record is, and has
   the same in Python for where no compiler is; so has `network/telling.py` for what is told of a task. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

typedef struct { double over, came, taken; long long bytes, about; } Record;

/* A bytearray grows by an eighth of its size: with records that is often. One that is cut by less than half keeps its
   memory, so it is made twice as large first. */
static int extend(PyObject *records, Py_ssize_t size)
{
    Py_ssize_t before = PyByteArray_GET_SIZE(records);
    if (size >= ((PyByteArrayObject *) records)->ob_alloc && size < 2 * before && PyByteArray_Resize(records, 2 * before))
        return -1;
    return PyByteArray_Resize(records, size);
}

/* To the records at the end of the list, or, if there is something else, as the first of others behind it. */
static int append_record(PyObject *events, const Record *record)
{
    Py_ssize_t told = PyList_GET_SIZE(events), size;
    PyObject *records = told ? PyList_GET_ITEM(events, told - 1) : NULL;
    int bad;
    if (records && PyByteArray_CheckExact(records)) {
        size = PyByteArray_GET_SIZE(records);
        if (extend(records, size + (Py_ssize_t) sizeof *record))
            return -1;
        memcpy(PyByteArray_AS_STRING(records) + size, record, sizeof *record);
        return 0;
    }
    records = PyByteArray_FromStringAndSize((const char *) record, sizeof *record);
    bad = !records || PyList_Append(events, records);
    Py_XDECREF(records);
    return bad ? -1 : 0;
}

/* add(events, over, came, taken, bytes, about) */
static PyObject *add(PyObject *Py_UNUSED(module), PyObject *const *values, Py_ssize_t count)
{
    Record record;
    if (count != 6 || !PyList_CheckExact(values[0])) {
        PyErr_SetString(PyExc_TypeError, "add() takes a list of events, three times, and two whole numbers");
        return NULL;
    }
    record.over = PyFloat_AsDouble(values[1]);
    record.came = PyFloat_AsDouble(values[2]);
    record.taken = PyFloat_AsDouble(values[3]);
    record.bytes = PyLong_AsLongLong(values[4]);
    record.about = PyLong_AsLongLong(values[5]);
    if (PyErr_Occurred() || append_record(values[0], &record))
        return NULL;
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ tasks that were answered

   There is one event for each task, and most are alike: answered well, in one piece, by a worker that has answered others
   for the same service. Those are told here. The attributes of tasks and workers stand in slots, whose places are looked
   up once. */

typedef struct {
    PyObject_HEAD
    PyObject *events, *otherwise;
    PyObject *task_type, *worker_type;
    Py_ssize_t created, sent, streamed, service, abouts; /* where the slots are */
    vectorcallfunc vectorcall;
} Answered;

static PyObject *in_slot(PyObject *object, Py_ssize_t place) { return *(PyObject **) ((char *) object + place); }

/* 1 when the event was told, 0 when it is not one of the many, -1 with an exception. */
static int tell_answered(Answered *self, PyObject *const *values)
{
    PyObject *task = values[0], *worker = values[1], *body = values[3], *now = values[4];
    PyObject *created, *sent, *service, *abouts, *number, *payload;
    Record record;
    if ((PyObject *) Py_TYPE(task) != self->task_type || (PyObject *) Py_TYPE(worker) != self->worker_type
        || !PyUnicode_Check(values[2]) || PyUnicode_CompareWithASCIIString(values[2], "ok") != 0
        || !PyTuple_CheckExact(body) || PyTuple_GET_SIZE(body) != 3 || in_slot(task, self->streamed) != Py_False)
        return 0;
    created = in_slot(task, self->created);
    sent = in_slot(task, self->sent);
    service = in_slot(task, self->service);
    abouts = in_slot(worker, self->abouts);
    if (!created || !PyFloat_CheckExact(created) || !sent || !PyFloat_CheckExact(sent) || !PyFloat_CheckExact(now)
        || !service || !abouts || !PyDict_CheckExact(abouts))
        return 0;
    if (!(number = PyDict_GetItemWithError(abouts, service)))
        return PyErr_Occurred() ? -1 : 0;
    payload = PyTuple_GET_ITEM(body, 2);
    record.over = PyFloat_AS_DOUBLE(now);
    record.came = PyFloat_AS_DOUBLE(created);
    record.taken = PyFloat_AS_DOUBLE(sent);
    record.about = PyLong_AsLongLong(number);
    record.bytes = PyBytes_CheckExact(payload) ? PyBytes_GET_SIZE(payload) : PyObject_Size(payload);
    if (PyErr_Occurred())
        return -1;
    return append_record(self->events, &record) ? -1 : 1;
}

static PyObject *Answered_call(PyObject *object, PyObject *const *values, size_t count, PyObject *names)
{
    Answered *self = (Answered *) object;
    int told = PyVectorcall_NARGS(count) == 5 && !names ? tell_answered(self, values) : 0;
    if (told < 0)
        return NULL;
    if (told)
        Py_RETURN_NONE;
    return PyObject_Vectorcall(self->otherwise, values, count & ~PY_VECTORCALL_ARGUMENTS_OFFSET, names);
}

static int find_slot(PyObject *type, const char *name, Py_ssize_t *place)
{
    PyObject *found = PyObject_GetAttrString(type, name);
    PyMemberDef *member = found && Py_IS_TYPE(found, &PyMemberDescr_Type) ? ((PyMemberDescrObject *) found)->d_member : NULL;
    if (member && member->type == T_OBJECT_EX)
        *place = member->offset;
    else if (found)
        PyErr_Format(PyExc_TypeError, "%s of %R is no slot", name, type);
    Py_XDECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *Answered_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *events, *task_type, *worker_type, *otherwise;
    Answered *self;
    if (!PyArg_ParseTuple(args, "O!O!O!O", &PyList_Type, &events, &PyType_Type, &task_type, &PyType_Type, &worker_type,
                          &otherwise)
        || !(self = (Answered *) type->tp_alloc(type, 0)))
        return NULL;
    self->vectorcall = Answered_call;
    self->events = Py_NewRef(events);
    self->otherwise = Py_NewRef(otherwise);
    self->task_type = Py_NewRef(task_type);
    self->worker_type = Py_NewRef(worker_type);
    if (find_slot(task_type, "created", &self->created) || find_slot(task_type, "sent", &self->sent)
        || find_slot(task_type, "streamed", &self->streamed) || find_slot(task_type, "service", &self->service)
        || find_slot(worker_type, "abouts", &self->abouts))
        Py_CLEAR(self);
    return (PyObject *) self;
}

static int Answered_traverse(Answered *self, visitproc visit, void *arg)
{
    Py_VISIT(self->events);
    Py_VISIT(self->otherwise);
    Py_VISIT(self->task_type);
    Py_VISIT(self->worker_type);
    return 0;
}

static int Answered_clear(Answered *self)
{
    Py_CLEAR(self->events);
    Py_CLEAR(self->otherwise);
    Py_CLEAR(self->task_type);
    Py_CLEAR(self->worker_type);
    return 0;
}

static void Answered_dealloc(Answered *self)
{
    PyObject_GC_UnTrack(self);
    Answered_clear(self);
    Py_TYPE(self)->tp_free((PyObject *) self);
}

static PyTypeObject AnsweredType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "scale0_core._packing.Answered",
    .tp_doc = "Answered(events, Task, Worker, otherwise): tells of tasks that were answered as most are.",
    .tp_basicsize = sizeof(Answered),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Answered, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = Answered_new,
    .tp_traverse = (traverseproc) Answered_traverse,
    .tp_clear = (inquiry) Answered_clear,
    .tp_dealloc = (destructor) Answered_dealloc,
};

/* ------------------------------------------------------------------ module */

static PyMethodDef packing_methods[] = {
    {"add", (PyCFunction) (void (*)(void)) add, METH_FASTCALL,
     "add(events, over, came, taken, bytes, about): append a packed event to a list."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef packing_module = {
    PyModuleDef_HEAD_INIT, .m_name = "_packing", .m_doc = "Packed events.", .m_size = -1, .m_methods = packing_methods,
};

PyMODINIT_FUNC PyInit__packing(void)
{
    PyObject *module = PyModule_Create(&packing_module);
    if (module && (PyType_Ready(&AnsweredType) < 0
                   || PyModule_AddObjectRef(module, "Answered", (PyObject *) &AnsweredType)))
        Py_CLEAR(module);
    return module;
}
