/* launcher/tools/script/words.h - words of a user as words of a batch script */
#ifndef LAUNCHER_TOOLS_SCRIPT_WORDS_H
#define LAUNCHER_TOOLS_SCRIPT_WORDS_H

/* Like shell_quote(), but never with a line break or another control character in it:
 * Grid Engine obeys "#$" at the start of any line, also within a quoted word. The caller
 * frees. */
char *script_quote(const char *word);

/* All of them, separated by blanks; NULL is none. The caller frees. */
char *script_quote_all(char *const *words);

#endif
