module ends

go 1.19
