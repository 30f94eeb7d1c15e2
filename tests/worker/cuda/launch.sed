# a kernel's launch as C++ (emu.h); with sed -z, since it may have several lines
s/\(\w*\)<<<\(\w*\), \(\w*\), 0, \(\w*\)>>>(/PUT_KERNEL(\1, \2, \3, \4, /g
