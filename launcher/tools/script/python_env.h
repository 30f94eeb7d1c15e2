/* launcher/tools/script/python_env.h - the Python environment that is active, as lines of
 * a script
 *
 * A job does not have the shell of the front end: what `activate` did there has to be
 * done again. conda, mamba, micromamba and pixi set CONDA_PREFIX; venv and uv set
 * VIRTUAL_ENV.
 */
#ifndef LAUNCHER_TOOLS_SCRIPT_PYTHON_ENV_H
#define LAUNCHER_TOOLS_SCRIPT_PYTHON_ENV_H

struct python_env {
    char *says;  /* "conda environment 'x' (/opt/conda/envs/x)"; owned; NULL: none is
                    active */
    char *lines; /* of bash, which enter it; owned */
};

/* Reads it with `get_env` (getenv, or a test's). python_env_finish() frees. */
void python_env_find(const char *(*get_env)(const char *name), struct python_env *env);
void python_env_finish(struct python_env *env);

#endif
