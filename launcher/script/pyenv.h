/* launcher/script/pyenv.h - the Python environment that is active, as lines of a script
 *
 * A job does not have the shell of the front end: what `activate` did there has to be done
 * again. conda, mamba, micromamba and pixi set CONDA_PREFIX; venv and uv set VIRTUAL_ENV.
 */
#ifndef LAUNCHER_SCRIPT_PYENV_H
#define LAUNCHER_SCRIPT_PYENV_H

struct pyenv {
    char *says;  /* "conda environment 'x' (/opt/conda/envs/x)"; owned; NULL: none is active */
    char *lines; /* of bash, which enter it; owned */
};

/* Reads it with `get_env` (getenv, or a test's). pyenv_finish() frees. */
void pyenv_find(const char *(*get_env)(const char *name), struct pyenv *env);
void pyenv_finish(struct pyenv *env);

#endif
