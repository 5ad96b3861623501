/* Packed events: a record of forty bytes is made and appended in one call. `packing.py` says what a record is, and has
   the same in Python for where no compiler is. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

typedef struct { double over, came, taken; long long bytes, about; } Record;

/* add(events, over, came, taken, bytes, about) */
static PyObject *add(PyObject *Py_UNUSED(module), PyObject *const *values, Py_ssize_t count)
{
    Record record;
    PyObject *packed;
    int bad;
    if (count != 6 || !PyList_CheckExact(values[0])) {
        PyErr_SetString(PyExc_TypeError, "add() takes a list of events, three times, and two whole numbers");
        return NULL;
    }
    record.over = PyFloat_AsDouble(values[1]);
    record.came = PyFloat_AsDouble(values[2]);
    record.taken = PyFloat_AsDouble(values[3]);
    record.bytes = PyLong_AsLongLong(values[4]);
    record.about = PyLong_AsLongLong(values[5]);
    if (PyErr_Occurred() || !(packed = PyBytes_FromStringAndSize((const char *) &record, sizeof record)))
        return NULL;
    bad = PyList_Append(values[0], packed);
    Py_DECREF(packed);
    if (bad)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef packing_methods[] = {
    {"add", (PyCFunction) (void (*)(void)) add, METH_FASTCALL,
     "add(events, over, came, taken, bytes, about): append a packed event to a list."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef packing_module = {
    PyModuleDef_HEAD_INIT, .m_name = "_packing", .m_doc = "Packed events.", .m_size = -1, .m_methods = packing_methods,
};

PyMODINIT_FUNC PyInit__packing(void) { return PyModule_Create(&packing_module); }
