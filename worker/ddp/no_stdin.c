/* worker/ddp/no_stdin.c - in libddp alone: a static jansson, compiled for programs as
 * distributions have it, can only be linked into a library that has a `stdin` of its own.
 * It is compared in json_loadf(), which nothing here calls.
 */
__attribute__((visibility("hidden"))) extern void *ddp_no_stdin __asm__("stdin");
void *ddp_no_stdin;
