/* include/ddprun/err.h - the error text that every call of the C API can fill
 *
 * The last parameter of a call that can fail is a `struct ddp_err *`, which may be NULL.
 * It is untouched on success. On failure it holds one sentence that can be shown as it
 * is: lower case, no full stop, what failed first, names in single quotes.
 */
#ifndef DDPRUN_ERR_H
#define DDPRUN_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

struct ddp_err {
    char text[512];
};

#if defined(__GNUC__)
#define DDP_API __attribute__((visibility("default")))
#else
#define DDP_API
#endif

#ifdef __cplusplus
}
#endif
#endif
