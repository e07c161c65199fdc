# Takes example programs out of comments and pages.
#     awk -v want=header  -f extract.awk devstream.h   the example of the opening comment
#     awk -v want=program -f extract.awk README.md     the first ```c block
#     awk -v want=blocks -v page=NAME -f extract.awk page.md   writes its ```c blocks to 1.c, 2.c, ... and all of them to all.c;
#         those that are programs to program1.c, ... instead, those that begin with the name of a kernel file to that file;
#         ```cuda blocks to 1.cu, ..., ```cpp blocks, which are programs, to program1.cpp, ...; each knows its line of the page
#     awk -v want=commands -f extract.awk README.md    the lines of its ```sh blocks without comments

want == "header" && /Example \(compiles as it stands\):/ { on = 1; next }
want == "header" && on && /^[ \t]*$/ { exit }
want == "header" && on { print; next }

want == "program" && on && /^```/ { exit }
want == "program" && on { print }
want == "program" && /^```c[ \t]*$/ { on = 1 }

want == "blocks" && inside && /^```/ { inside = 0; if (language) put(); next }
want == "blocks" && inside { text = text $0 "\n"; next }
want == "blocks" && /^```/ { inside = 1; language = /^```c[ \t]*$/ ? "c" : /^```cuda[ \t]*$/ ? "cu" : /^```cpp[ \t]*$/ ? "cpp" : ""; text = ""; began = FNR + 1 }
function put() {
    text = "#line " began " \"" page "\"\n" text
    if (match(text, /\n\/\* [a-z_]+\.kernels\.h \*\//)) printf "%s", text >substr(text, RSTART + 4, RLENGTH - 7)
    else if (language == "cu") printf "%s", text >(++device ".cu")
    else if (language == "cpp") printf "%s", text >("program" ++owners ".cpp")
    else if (text ~ /\nint main\(/) printf "%s", text >("program" ++programs ".c")
    else { printf "%s", text >(++blocks ".c"); printf "%s", text >"all.c" }
}

want == "commands" && /^```/ { inside = !inside && /^```sh[ \t]*$/; next }
want == "commands" && inside { sub(/^\$ /, ""); sub(/[ \t]+#.*/, ""); if (!/^[ \t]*(#|$)/) print }
