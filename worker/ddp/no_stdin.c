/* worker/ddp/no_stdin.c - a symbol that libddp needs for a static jansson
 *
 * Distributions compile libjansson.a for executables: its reference to `stdin`, in
 * json_loadf(), cannot be linked into a shared library unless the library defines the
 * symbol itself. Nothing here calls json_loadf().
 */
__attribute__((visibility("hidden"))) extern void *ddp_no_stdin __asm__("stdin");
void *ddp_no_stdin;
