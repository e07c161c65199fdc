# Takes example programs out of comments and pages.
#     awk -v want=header  -f extract.awk devstream.h   the example of the opening comment
#     awk -v want=program -f extract.awk README.md     the first ```c block
#     awk -v want=fragments -f extract.awk page.md   all its ```c blocks, one after another
#     awk -v want=command -f extract.awk README.md     the first line of a block that calls cc with a .c file

want == "header" && /Example \(compiles as it stands\):/ { on = 1; next }
want == "header" && on && /^[ \t]*$/ { exit }
want == "header" && on { print; next }

want == "program" && on && /^```/ { exit }
want == "program" && on { print }
want == "program" && /^```c[ \t]*$/ { on = 1 }

want == "fragments" && /^```/ { on = !on && /^```c[ \t]*$/; next }
want == "fragments" && on { print }

want == "command" && /^```/ { inside = !inside; next }
want == "command" && (inside || /^    /) && /^[ \t]*(\$ )?cc .*\.c( |$)/ { sub(/^[ \t]*(\$ )?/, ""); print; exit }
