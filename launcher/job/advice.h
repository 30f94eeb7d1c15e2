/* launcher/job/advice.h - what to try, by the last line of a rank that has failed */
#ifndef LAUNCHER_JOB_ADVICE_H
#define LAUNCHER_JOB_ADVICE_H

/* A sentence, malloc'ed, for the last line of the rank's output; `python`: its
 * interpreter and where it runs, for the text. NULL: the line is not in the table. */
char *advice_on(const char *last, const char *python);

#endif
