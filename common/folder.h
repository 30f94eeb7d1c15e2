/* common/folder.h - is there a folder at this path? */
#ifndef COMMON_FOLDER_H
#define COMMON_FOLDER_H

#include <stdbool.h>
#include <sys/stat.h>

static inline bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

#endif
