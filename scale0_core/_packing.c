/* Packed events: a record of forty bytes is made and appended in one call. `packing.py` says what a record is, and has
   the same in Python for where no compiler is. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

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
    return PyModule_Create(&packing_module);
}
